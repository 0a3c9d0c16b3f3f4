"""Small files that expand without bound: each costs at most itself, by name, and little memory."""

import json
import zipfile
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from energon_pack.errors import PackError
from energon_pack.run import bounds
from energon_pack.run.plain_data import NotPlain, json_value, yaml_value
from energon_pack.samples.skip import Skip
from energon_pack.sources import inside, tables
from energon_pack.sources.field_map import read_field_map
from energon_pack.sources.inside import open_member
from energon_pack.sources.prepared_folder import read_prepared
from energon_pack.sources.tables import table_of, table_row
from energon_pack.sources.tar import _pax

DEEP = "[" * 100_000
LAUGHS = "a: &a [lol, lol]\n" + "".join(
    f"{after}: &{after} [{', '.join([f'*{before}'] * 9)}]\n" for before, after in pairwise("abcdefghij")
)


@pytest.fixture(autouse=True)
def _bounds_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "_hold", [True])  # as in the command, and in workers


HOW: list[dict[str, object]] = [
    {},
    {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}},
    {"as_dictionary": True},
]


def test_a_column_that_says_one_text_many_times(tmp_path: Path) -> None:
    """2.6 kB of Parquet took 3 GB: its footer states the bytes of the encoding, not those of the texts."""
    column = pa.array(["x" * 20_000] * 10_000)
    paths = [tmp_path / f"{number}.parquet" for number in range(len(HOW))]
    for path, how in zip(paths, HOW, strict=True):
        is_dictionary = how.pop("as_dictionary", False)
        table = pa.table({"text": column.dictionary_encode() if is_dictionary else column, "id": range(len(column))})
        pq.write_table(table, path, row_group_size=len(column), compression="zstd", **how)
        assert path.stat().st_size < 200_000
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:  # here, freed memory may serve
        said = [fresh.submit(refusal, path, number).result() for path in paths for number in (0, 9_999)]
    assert len({*said}) == 1, said  # the second row costs nothing
    assert "row group 0 takes more than 50.3 MB: write it in groups of 200 rows" in said[0]


def refusal(path: Path, number: int) -> str:
    """Return why a row can't be read."""
    bounds.hold_here()
    vars(tables).update(LARGEST=48 << 20, MOST_TIMES=1)
    try:
        return f"{len(table_row(str(path), str(path.stat().st_mtime_ns), number))} bytes"
    except Skip as skip:
        return str(skip)


def test_a_table_of_nothing(tmp_path: Path) -> None:
    """Each row takes memory in the index, and none in the file."""
    pq.write_table(pa.table({"text": pa.nulls(10_000_000, pa.string())}), tmp_path / "a.parquet")
    with pytest.raises(PackError, match=r"a\.parquet has 10,000,000 rows in .* kB: that is no table of samples"):
        table_of(str(tmp_path / "a.parquet"))


def test_a_list_of_lists_of_lists(tmp_path: Path) -> None:
    """YAML's aliases: 400 bytes stand for a billion values, and whoever prints or walks them never ends."""
    with pytest.raises(NotPlain, match="its aliases stand for more than 10,000,000 values"):
        yaml_value(LAUGHS)
    assert yaml_value("a: &a [1]\nb: [*a, *a]")["b"] == [[1], [1]]
    for text in (f"a: {DEEP}", "a: &a [*a]", "a: ["):
        with pytest.raises(NotPlain):
            yaml_value(text)
    meta = tmp_path / ".nv-meta"
    meta.mkdir()
    (meta / "dataset.yaml").write_text(f"{LAUGHS}field_map: {{text: *j}}\n")
    with pytest.raises(PackError, match=r"dataset\.yaml can't be read: its aliases"):
        read_field_map(str(tmp_path))
    (meta / "split.yaml").write_text(f"{LAUGHS}split_parts: {{train: [a.tar]}}\nexclude: *j\n")
    with pytest.raises(PackError, match=r"split\.yaml can't be read: its aliases"):
        read_prepared(str(tmp_path), "train")


def test_names_in_braces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever bound comes first: a process that has freed much may fill it for a while."""
    monkeypatch.setattr("energon_pack.sources.prepared_folder._LARGEST", 48 << 20)
    monkeypatch.setattr("energon_pack.sources.prepared_folder._SECONDS", 1.0)
    (tmp_path / ".nv-meta").mkdir()
    (tmp_path / ".nv-meta" / "split.yaml").write_text('split_parts: {train: ["{0..9999999999}.tar"]}\n')
    with pytest.raises(PackError, match=r"split_parts\.train: it takes more than (50\.3 MB|1 s)"):
        read_prepared(str(tmp_path), "train")


def test_json_that_is_nested_without_end(tmp_path: Path) -> None:
    """A RecursionError is no error of JSON's, and came out as a traceback."""
    with pytest.raises(ValueError, match="nested too deeply"):
        json_value(DEEP)
    with pytest.raises(json.JSONDecodeError):
        json_value("[")
    (tmp_path / ".nv-meta").mkdir()
    (tmp_path / ".nv-meta" / "split.json").write_text(DEEP)
    with pytest.raises(PackError, match=r"split\.json can't be read: nested too deeply"):
        read_prepared(str(tmp_path), None)


def test_archives_that_hold_more_than_they_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A medium in a zip is read whole."""
    monkeypatch.setattr(inside, "_BESIDE", 4 << 20)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.png", bytes(100 << 20))
        archive.writestr("b.png", b"b" * 1000)
    with pytest.raises(Skip, match=r"'a\.png' of the zip archive: .* it takes more than"):
        open_member(str(tmp_path / "a.zip"), "a.png")
    assert open_member(str(tmp_path / "a.zip"), "b.png").size == 1000


def test_extended_headers_without_end() -> None:
    """A tar may have gigabytes of them before a member: only what is read of them is kept."""
    assert _pax(b"14 path=a.txt\n" + b"12 note=abc\n" + b"22 GNU.sparse.map=1,2\n") == {
        "path": "a.txt",
        "GNU.sparse": "",
    }
