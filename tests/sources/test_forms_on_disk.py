"""What users of other systems have on disk is packed by its path, as the same samples in a JSONL are."""

import shlex
from collections import Counter
from pathlib import Path

import pytest

from energon_pack.config import Format
from energon_pack.pack import pack
from support.forms_on_disk import FORMS, Write, write_lines
from support.marks import first_of, slow
from support.packed import demo_config
from support.running import command_here, run_here
from support.trained import skipped, trained

#: every spelling; the ordinary run tries the first of each kind
SPELLINGS = [case for spellings in FORMS.values() for case in first_of(spellings)]

#: what `try` shows is typed for three kinds in the ordinary run: a list of lists, tars, and a table beside its pictures
TYPED = [
    spelling if number == 0 and kind in ("LLaVA-OneVision YAML", "MINT-1T", "image folder") else slow(spelling)
    for kind, spellings in FORMS.items()
    for number, spelling in enumerate(spellings)
]


def name_of(write: Write) -> str:
    return write.__name__


def test_every_kind_has_three_spellings() -> None:
    """A kind that is read in one spelling alone costs the users of the others a script."""
    assert {kind: len(spellings) for kind, spellings in FORMS.items() if len(spellings) < 3} == {}
    assert len(FORMS) == 10


@pytest.mark.usefixtures("template")  # it is built once for all
@pytest.mark.parametrize("write", SPELLINGS, ids=name_of)
def test_a_form_is_trained_as_its_lines_are(write: Write, demo: tuple[Path, Path], cache: Path, tmp_path: Path) -> None:
    """Token ids, labels and media; without it the form's user trains other samples than the form says."""
    folder = tmp_path / "data"
    folder.mkdir()
    expected = write(folder)
    write_lines(tmp_path / "lines.jsonl", expected.records)
    words = ("+model=qwen2_5_vl", f"model.processor={demo[1]}", f"cache_dir={cache}", "packing.max_token_len=1024")
    theirs = (f"source.path={expected.path}", *expected.words, "max_skipped=1", "output.dir=../packed")
    code, _, error = run_here(*words, *theirs, "output.name=theirs", cwd=folder)
    assert code == 0, error
    lines_alone = {"output__name": "lines", "output__dir": str(tmp_path / "packed"), "packing__max_token_len": 1024}
    pack(demo_config(demo, cache, tmp_path, tmp_path / "lines.jsonl", source__format=Format.jsonl, **lines_alone))
    assert skipped(tmp_path / "packed/theirs") == expected.skipped
    form, lines = (Counter(trained(tmp_path / "packed" / name).values()) for name in ("theirs", "lines"))
    assert form == lines
    assert form.total() == len(expected.records)


@pytest.mark.usefixtures("template")
@pytest.mark.parametrize("write", TYPED, ids=name_of)
def test_the_next_command_of_try_packs_a_form(
    write: Write, demo: tuple[Path, Path], cache: Path, tmp_path: Path
) -> None:
    """A user who types what `try` shows had another source there, or lost the settings that the form needs."""
    expected = write(tmp_path)
    words = (f"model.processor={demo[1]}", f"cache_dir={cache}", "executor.num_workers=1", *expected.words)
    shown = command_here("energon_pack.inspect.try_source", expected.path, *words, cwd=tmp_path)
    command = next(line for line in shown.stdout.splitlines() if line.startswith("energon-pack "))
    code, _, error = run_here(*shlex.split(command)[1:], "measure.verify=0", "output.name=next", cwd=tmp_path)
    assert code == 0, error
    assert len(trained(tmp_path / "packed/next")) == len(expected.records)
