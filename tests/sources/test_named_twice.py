"""What `source.path` names twice, or by a link too, is read once, and a line says so: nobody misses half of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from energon_pack.sources.find import Source
from energon_pack.sources.settings import SourceConfig
from energon_pack.sources.source_path import find_source
from support.packed import Make, json_lines, packed
from support.samples import chat, write_tar


def found(path: Any, format: str = "auto") -> Source:
    return find_source(SourceConfig(path=path, format=format), path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tar, and lines beside it in another folder."""
    write_tar(tmp_path / "tars" / "a.tar", {"a.json": chat("q", "a")})
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "l.jsonl").write_bytes(chat("q", "a"))
    return tmp_path


@pytest.mark.parametrize("format", ["auto", "wds"])
def test_a_tar_that_is_named_by_a_link_is_told(folder: Path, format: str) -> None:
    tar, link = folder / "tars" / "a.tar", folder / "b.tar"
    link.symlink_to(tar)
    source = found([str(tar), str(link)], format)
    assert [Path(shard.path).name for shard in source.shards] == ["a.tar"]
    assert source.repeated_files_note == (
        f"source.path names {link}, which is {tar}: 1 path leads to what is read already, and is read once; to train it"
        " more often, make it an entry of a mixture with epochs: 2"
    )


@pytest.mark.parametrize(
    ("names", "number"),
    [
        (["lines", "lines"], 1),
        (["lines", "lines/*.jsonl"], 1),
        (["lines/l.jsonl", "lines/l.jsonl", "lines/../lines"], 2),
        (["lines", "tars", "lines", "tars/*"], 2),
        (["tars/**"], 0),  # a glob that matches folders and the files in them names each once
        (["lines", "tars"], 0),
    ],
)
def test_a_file_that_is_named_twice_is_told(folder: Path, names: list[str], number: int) -> None:
    source = found([str(folder / name) for name in names])
    assert len(source.repeated) == number
    assert len(source.shards) == len({shard.real_path for shard in source.shards})


def test_a_folder_that_a_link_beside_it_repeats_is_told(folder: Path) -> None:
    (folder / "tars2").symlink_to(folder / "tars")
    (folder / "lines" / "up").symlink_to(folder / "lines")  # a link back up repeats nothing
    source = found(str(folder))
    assert len(source.shards) == 2
    assert source.repeated == ((str(folder / "tars2"), str(folder / "tars")),)


def test_an_entry_of_a_mixture_with_a_link_is_told(folder: Path) -> None:
    (folder / "tars" / "b.tar").symlink_to(folder / "tars" / "a.tar")
    entries = {"one": {"path": str(folder / "tars"), "epochs": 2}, "two": {"path": str(folder / "lines")}}
    assert len(found(entries).repeated) == 1


def test_a_run_says_it_and_counts_each_sample_once(
    folder: Path, config: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = folder / "lines" / "l.jsonl"
    dataset = packed(config([str(lines), str(lines)]))
    assert f"source.path names {lines} twice: 1 path leads to what is read already" in capsys.readouterr().out
    assert json.loads((dataset / "report.json").read_text())["samples_in"] == 1
    assert json_lines(dataset / "skipped.jsonl") == []
