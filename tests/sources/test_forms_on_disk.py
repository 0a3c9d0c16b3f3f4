"""What users of other systems have on disk is packed by its path, as the same samples in a JSONL are."""

import re
import shlex
from collections import Counter
from pathlib import Path

import pytest

from support.forms_on_disk import FORMS, Write, write_lines
from support.marks import first_of
from support.running import command_here, run_here
from support.trained import skipped, trained

_ALL = [write for spellings in FORMS.values() for write in spellings]


def name_of(write: Write) -> str:
    return write.__name__


@pytest.mark.parametrize("write", [case for kind in FORMS.values() for case in first_of(kind)], ids=name_of)
def test_a_form_is_trained_as_its_lines_are(
    write: Write, demo: tuple[Path, Path], cache: Path, tmp_path: Path
) -> None:
    """Without it a user has to write a script for each of these, or trains other samples than the form says."""
    folder = tmp_path / "data"
    folder.mkdir()
    expected = write(folder)
    write_lines(tmp_path / "lines.jsonl", expected.records)
    words = ("+model=qwen2_5_vl", f"model.processor={demo[1]}", f"cache_dir={cache}", "packing.max_token_len=1024")
    loss = ("max_skipped=1", "output.dir=../packed", "output.name=theirs")
    code, _, error = run_here(*words, f"source.path={expected.path}", *expected.words, *loss, cwd=folder)
    assert code == 0, error
    code, _, error = run_here(*words, "source.path=lines.jsonl", "output.name=lines", cwd=tmp_path)
    assert code == 0, error
    assert skipped(tmp_path / "packed/theirs") == expected.skipped
    theirs, lines = (Counter(trained(tmp_path / "packed" / name).values()) for name in ("theirs", "lines"))
    assert theirs == lines
    assert theirs.total() == len(expected.records)
