"""Our trained tokens of our own conversations, compared with transformers' prefixes, TRL, ms-swift and LLaMA-Factory.

Without it, only the 36 conversations of the truth are compared, and only what those frameworks trained on one day.
"""

from pathlib import Path
from typing import Any

import pytest

from support.labels.conventions import reason_to_differ
from support.labels.conversations import conversations, weighted
from support.labels.folders import REAL_FOLDERS, download_trl, has_real_folder, make_folder
from support.labels.frameworks import Judged, judge_template, rows_of_frameworks
from support.labels.truth import names
from support.running import REAL

pytestmark = pytest.mark.skipif(not REAL.is_dir(), reason="../shared/real is not here")

#: ChatML with tools, and a template that writes text in parts alone
FEW = ("qwen3_vl", "granite_docling_idefics3")


def wrong_of(name: str, folder: Path, rows: list[dict[str, Any]], frameworks: dict[str, Any]) -> dict[str, Judged]:
    judged = judge_template(name, folder, rows, frameworks)
    return {item.name: item for item in judged if not item.is_right and reason_to_differ(item) is None}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("frameworks")


def folder_of(name: str, made: Path) -> Path:
    if has_real_folder(name):
        return REAL / "processors" / name
    try:
        return make_folder(name, download_trl(made / "trl"), made)
    except OSError as error:
        pytest.skip(str(error))


def test_there_are_enough() -> None:
    assert len(conversations()) >= 140


@pytest.mark.parametrize("name", FEW)
def test_a_turn_is_what_follows_its_prompt(name: str) -> None:
    assert wrong_of(name, REAL / "processors" / name, [*conversations(), *weighted()], {}) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*REAL_FOLDERS, *(name for name in names() if not has_real_folder(name))])
def test_what_frameworks_train_is_trained(name: str, made: Path) -> None:
    folder = folder_of(name, made)
    frameworks, not_run = rows_of_frameworks(name, folder, conversations(), made / "rows")
    print("not run:", *not_run)
    assert wrong_of(name, folder, conversations(), frameworks) == {}
    assert wrong_of(name, folder, weighted(), {}) == {}
