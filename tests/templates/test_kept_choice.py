"""What was chosen for a processor is kept in the user's cache."""

import json
from pathlib import Path

import pytest

from energon_pack.templates.processor import choice_of, prepare_template
from support.models import of_model


@pytest.mark.parametrize("kept", [{"template": "of a later version", "tried": []}, {"template": "text"}, []])
def test_a_choice_that_means_nothing_here_is_made_again(
    tmp_path: Path, real: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kept: object
) -> None:
    """A later version had written the name of a family that is not here: no start came through any more."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    settings = of_model("text", real / "processors" / "qwen2_5_text")
    prepare_template(settings, tmp_path / "first")
    (file,) = (tmp_path / "energon_pack" / "choices").iterdir()
    file.write_text(json.dumps(kept))
    assert choice_of(prepare_template(settings, tmp_path / "second")).template == "text"
    assert "is made again" in caplog.text
