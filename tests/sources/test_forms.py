"""What files of a source are is found by their names; what could be either is refused."""

from pathlib import Path

import pytest

from energon_pack.errors import PackError
from energon_pack.pack import pack
from energon_pack.sources.forms import find_source, form_of, format_of, read_as
from energon_pack.sources.settings import Format, SourceConfig
from support.packed import Make, json_lines, samples
from support.running import command
from support.samples import chat, picture, write_tar

AUTO = SourceConfig()


def a_tar(path: Path) -> Path:
    write_tar(path, {"a.json": chat("<image>?", "from a tar"), "a.png": picture(format="PNG")})
    return path


def a_file_of_lines(path: Path) -> Path:
    path.write_text(chat("?", "from a line").decode() + "\n")
    return path


@pytest.mark.parametrize(("name", "form"), [("a.tar", "wds"), ("a.jsonl", "jsonl"), ("a.json", "jsonl")])
def test_a_file_is_what_it_is_called(tmp_path: Path, name: str, form: str) -> None:
    """Without it each first run on JSONL ended with "damaged tar"."""
    path = a_tar(tmp_path / name) if form == "wds" else a_file_of_lines(tmp_path / name)
    assert form_of(str(path)) == form
    source = find_source(AUTO, str(path))
    assert format_of(source) == form
    assert read_as(source) == {"wds": "WebDataset tars, 1 file", "jsonl": "JSONL, 1 file"}[form]


def test_a_folder_of_both_is_refused_with_what_was_seen(tmp_path: Path) -> None:
    """A list of annotations beside tars is not always samples: nobody may guess."""
    a_tar(tmp_path / "a.tar")
    a_file_of_lines(tmp_path / "notes.jsonl")
    with pytest.raises(PackError, match=r"there are 1 \*\.tar and 1 \*\.jsonl; source=wds or source=jsonl reads one"):
        find_source(AUTO, str(tmp_path))
    assert format_of(find_source(SourceConfig(format="wds"), str(tmp_path))) is Format.wds


def test_ledgers_are_no_samples(tmp_path: Path) -> None:
    """What `convert` writes could not be packed: its ledger lies beside the tars."""
    a_tar(tmp_path / "a.tar")
    (tmp_path / "skipped.jsonl").touch()
    assert form_of(str(tmp_path)) is Format.wds


def test_a_folder_of_neither_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PackError, match=r"no \*\.tar, \*\.jsonl, \*\.parquet or \*\.arrow there"):
        find_source(AUTO, str(tmp_path))


def test_one_plan_over_tars_and_lines(config: Make, tmp_path: Path) -> None:
    """Two runs would be two datasets, with packs, steps and orders of their own."""
    paths = [str(a_tar(tmp_path / "a.tar")), str(a_file_of_lines(tmp_path / "b.jsonl"))]
    run = config(paths, packing__group_by="none", packing__max_token_len=256)
    pack(run)
    (packed,) = Path(run.output.dir).glob("packed")
    (parts,) = samples(packed).values()
    assert sorted(path.name for path in packed.glob("*.tar")) == ["packed-000000.tar"]
    assert all(text in parts["json"] for text in (b"from a tar", b"from a line"))
    assert json_lines(packed / "skipped.jsonl") == []
    verified = command("-m", "energon_pack.verify", str(packed), "--source", "--num-workers", "1", cwd=tmp_path)
    assert verified.returncode == 0, verified.stdout + verified.stderr
