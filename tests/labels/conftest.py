"""Fixtures that the tests of labels share."""

from pathlib import Path

import pytest

from support.labels.folders import download_trl


@pytest.fixture(scope="session")
def trl_templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of chat templates in TRL's wheel; the test is skipped where it can't be downloaded."""
    try:
        return download_trl(tmp_path_factory.mktemp("trl"))
    except OSError as error:
        pytest.skip(str(error))
