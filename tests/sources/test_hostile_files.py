"""Files that broke off or expand without bound: refused, or whole samples kept; each costs at most itself, by name."""

import json
import zipfile
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energon_pack.config import OnDamaged, Stage
from energon_pack.errors import PackError
from energon_pack.pack import pack
from energon_pack.run import untrusted_input
from energon_pack.run.untrusted_input import UnparsableDataError, parse_json, parse_yaml
from energon_pack.samples.skip import Skip
from energon_pack.sources import media_files, parquet_rows
from energon_pack.sources.find import make_shard_of_file
from energon_pack.sources.jsonl.dialects import RowSettings
from energon_pack.sources.jsonl.line_index import index_lines
from energon_pack.sources.media_files import open_medium, open_zip_member
from energon_pack.sources.parquet_rows import row_json, table_of
from energon_pack.sources.part_names import read_field_map
from energon_pack.sources.prepared_folder import read_prepared_folder
from energon_pack.sources.shard import JsonlShard
from energon_pack.sources.tar import _parse_pax
from energon_pack.sources.wds import index_metadata, parse_index_damage
from support.packed import Make
from support.running import command_here

TURNS = [{"role": "user", "content": "ä?"}, {"role": "assistant", "content": '日本 "}]\\ [{'}]
LINE = json.dumps({"messages": TURNS}, ensure_ascii=False).encode()


def index(path: Path, data: bytes) -> tuple[list[tuple[str, str | None]], list[str]]:
    """Keys with their reasons, and what is damaged."""
    path.write_bytes(data)
    table = make_shard_of_file(
        path.name, str(path), JsonlShard, {"row_settings": RowSettings(str(path.parent))}
    ).index()
    rows = [(row["key"], row["reason"]) for row in table.to_pylist()]
    return rows, [what for _, what in parse_index_damage(index_metadata(table))]


@pytest.mark.parametrize(
    ("data", "rows", "said"),
    [
        (LINE[:20], ["invalid_json"], "it breaks off within line 1: b'"),  # within the first line
        (b"{}\n\n" + LINE[:-1], [None, "invalid_json"], "it breaks off within line 3: b'"),
        (b"{}\n" + LINE[: LINE.index(b"\xe6") + 1], [None, "invalid_json"], "it breaks off within line 2: b'"),
        (b"{}\n" + LINE[: LINE.index(b"\\") + 1], [None, "invalid_json"], "it breaks off within line 2: b'"),
        (b"{}\n{\n", [None, "invalid_json"], "it breaks off within line 2: b'{'"),  # an editor ended the line
        (b"{}\r\n{}\r", [None, None, "invalid_json"], "it breaks off between CR and LF"),
        (b"{}\n{}\n\0\0\0", [None, None, "invalid_json"], "NUL bytes in place of text"),
        (b"{}\n{}\0\0\0", [None, None, "invalid_json"], "NUL bytes in place of text"),
        (b'{}\n{"a\0\0\0', [None, "invalid_json"], "it breaks off within line 2: b'{\"a'"),
        (b'{}\n{"a\0\0\0\n{}', [None, None, None], "NUL bytes in place of text"),  # a hole: reading the line fails
        (b"\0\0", ["invalid_json"], "NUL bytes in place of text"),
        (b"", ["invalid_json"], "it is empty"),
        (b'[{"a": 1},{"b', [None, "invalid_json"], "it breaks off, after element 1: b'{\"b'"),
        (b'[{"a": 1}, ', [None, "invalid_json"], "it breaks off, after element 1: b''"),
        (b"[", ["invalid_json"], "it breaks off, after element 0: b''"),
        (b'[{"a": "b}]', ["invalid_json"], "it breaks off, after element 0: b'{\"a\": \"b}]'"),  # balanced by chance
        (b'[{"a": 1}]\0\0', [None, "invalid_json"], "NUL bytes in place of text"),
        (b'[{"a": 1},\n{"b\0\0\0: 1}]', [None, "invalid_json"], "NUL bytes in place of text"),
        (b'[{"a": 1}]\n[{"a": 2}]\n', [None, None], None),  # each line is a conversation
        (b'[\n{"a": 1}\n]\n[\n{"a": 2}]\n', [None, "invalid_json"], "it goes on behind the list, after element 1: b'["),
        (b'{\n"data": [{"a": 1}, {"a', [None, "invalid_json"], "it breaks off, after element 1: b'{\"a'"),
        (b'{\n"data": [{"a": 1}], "b": 1', [None, "invalid_json"], "it breaks off, after element 1: b', \"b\": 1'"),
        (b'{\n"info": {}, "da', ["invalid_json"], "it breaks off, after element 0: b'{"),
        (b'{\n"data": [{"a": 1}], "b": 1}\n', [None], None),
        (b'{"a": 1}\n{"b": }', [None, None], None),  # malformed, and whole: reading the line fails
        (b'{"a": 1}\n{"b": 1}}\n', [None, None], None),
        (b'{"a": 1}\nnot JSON', [None, None], None),
        (b'{"a": 1}\n{"b": 1}', [None, None], None),
        (b"\n \n", [], None),
        (b"[]", [], None),
        (b"[1, null,]", [None, None], None),
    ],
)  # fmt: skip
def test_json_that_breaks_off(tmp_path: Path, data: bytes, rows: list[str | None], said: str | None) -> None:
    """Half a file was one sample of bad data, `invalid_json`, and what followed was nowhere."""
    found, damage = index(tmp_path / "x.jsonl", data)
    assert [reason for _, reason in found] == rows
    assert len(damage) == (said is not None)
    assert said is None or damage[0].startswith(said)


RECORDS = st.dictionaries(st.sampled_from(["a", "]", '"', "\\", "é"]), st.lists(st.text('{[]}",\\\né') | st.floats()))


@given(values=st.lists(RECORDS, min_size=1, max_size=3), where=st.floats(0, 1, exclude_max=True))
@settings(max_examples=100)
@pytest.mark.parametrize("indent", [None, 1])
def test_any_cut_is_seen(
    tmp_path_factory: pytest.TempPathFactory, values: list[Any], where: float, indent: int | None
) -> None:
    """But one at the end of a line: such a file is whole by all that it says."""
    path = tmp_path_factory.mktemp("cut") / "x.json"
    lines = "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values).encode()
    at = int(where * len(lines))
    ends = {
        0,
        *(end for end, byte in enumerate(lines) if byte == 10),
        *(end + 1 for end, byte in enumerate(lines) if byte == 10),
    }
    assert bool(index(path, lines[:at])[1]) == (at not in ends or at == 0)
    for whole in (values, {"info": "x", "data": values, "more": 1}):
        array = json.dumps(whole, ensure_ascii=False, indent=indent).encode()
        at = int(where * len(array))
        if indent or isinstance(whole, list):
            assert index(path, array)[1] == []
        assert index(path, array[:at])[1] != []


@pytest.mark.parametrize("first", ["images", "annotations"])
def test_coco_captions_that_break_off(tmp_path: Path, first: str) -> None:
    """Cut behind its captions, a file lost the names of its images; cut in front, its captions."""
    lists = {"images": [{"id": 7, "file_name": "7.jpg"}] * 2, "annotations": [{"image_id": 7, "caption": "A."}] * 2}
    data = json.dumps({name: lists[name] for name in sorted(lists, key=lambda name: name != first)}).encode()
    assert index(tmp_path / "x.json", data) == ([("1", None), ("2", None)], [])
    for at in range(1, len(data)):
        assert index(tmp_path / "x.json", data[:at])[1] != []


def test_an_lmdb_that_breaks_off(tmp_path: Path) -> None:
    """Reading a page that is not there ended the worker, "most likely for memory"."""
    lmdb = pytest.importorskip("lmdb")
    path = tmp_path / "a.lmdb"
    with lmdb.open(str(path), subdir=False, map_size=1 << 20) as environment, environment.begin(write=True) as values:
        values.put(b"image", b"x" * 9000)
    with pytest.raises(PackError, match="is an LMDB: lines of JSON name its values"):
        index_lines(str(path))
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(Skip, match=r"'a.lmdb' is cut short: its pages need [\d,]+ bytes, it has [\d,]+"):
        open_medium(f"{path}::image")


def write_half(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes((LINE + b"\n") * 8 + LINE[:30])
    return path


def test_a_cut_file_is_refused_wherever_it_is_named(config: Make, tmp_path: Path) -> None:
    """With a share or the first samples alone, too; of a mixture, and of a meta file."""
    half = write_half(tmp_path / "half/b.jsonl")
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole/a.jsonl").write_bytes((LINE + b"\n") * 8)
    meta, mixture = tmp_path / "meta.json", tmp_path / "mix.yaml"
    meta.write_text(json.dumps({"b": {"file_name": "half/b.jsonl"}}))
    mixture.write_text("mixture: [{path: whole, weight: 1}, {path: half, weight: 1}]")
    named: list[tuple[Any, dict[str, Any]]] = [
        (half, {}),
        ([str(tmp_path / "whole"), str(half)], {"source__limit": 1}),
        (half, {"part": "0/1", "stage": Stage.lengths}),
        (meta, {}),
        (mixture, {}),
    ]  # fmt: skip
    for source, own in named:
        with pytest.raises(PackError, match=r"damaged file .*b\.jsonl: it breaks off within line 9: .*on_damaged=keep"):
            pack(config(source, source__format="auto", **own))


def test_whole_samples_are_kept_if_the_user_says_so(config: Make, demo: tuple[Path, Path], tmp_path: Path) -> None:
    """The rest is one line of the ledger; `try` refuses the file before it measures."""
    half = write_half(tmp_path / "half/b.jsonl")
    kept = pack(config(half, source__on_damaged=OnDamaged.keep, max_skipped=0.5, source__format="jsonl"))
    assert (kept["samples_packed"], kept["skipped_by_reason"]) == (8, {"invalid_json": 1})
    shown = command_here(
        "energon_pack.inspect.try_source", half, "+model=qwen2_5_vl", f"model.processor={demo[1]}", cwd=tmp_path
    )
    assert (shown.returncode, "breaks off within line 9" in shown.stderr) == (1, True)


DEEP = "[" * 100_000
LAUGHS = "a: &a [lol, lol]\n" + "".join(
    f"{after}: &{after} [{', '.join([f'*{before}'] * 9)}]\n" for before, after in pairwise("abcdefghij")
)


@pytest.fixture(autouse=True)
def _bounds_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untrusted_input, "_is_enabled", [True])  # as in the command, and in workers


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
    untrusted_input.enable_memory_bounds()
    vars(parquet_rows).update(MAX_GROUP_BYTES=48 << 20, MEMORY_PER_BYTE=1)
    try:
        return f"{len(row_json(str(path), str(path.stat().st_mtime_ns), number))} bytes"
    except Skip as skip:
        return str(skip)


def test_a_table_of_nothing(tmp_path: Path) -> None:
    """Each row takes memory in the index, and none in the file."""
    pq.write_table(pa.table({"text": pa.nulls(10_000_000, pa.string())}), tmp_path / "a.parquet")
    with pytest.raises(PackError, match=r"a\.parquet has 10,000,000 rows in .* kB: that is no table of samples"):
        table_of(str(tmp_path / "a.parquet"))


def test_a_list_of_lists_of_lists(tmp_path: Path) -> None:
    """YAML's aliases: 400 bytes stand for a billion values, and whoever prints or walks them never ends."""
    with pytest.raises(UnparsableDataError, match="its aliases stand for more than 10,000,000 values"):
        parse_yaml(LAUGHS)
    assert parse_yaml("a: &a [1]\nb: [*a, *a]")["b"] == [[1], [1]]
    for text in (f"a: {DEEP}", "a: &a [*a]", "a: ["):
        with pytest.raises(UnparsableDataError):
            parse_yaml(text)
    meta = tmp_path / ".nv-meta"
    meta.mkdir()
    (meta / "dataset.yaml").write_text(f"{LAUGHS}field_map: {{text: *j}}\n")
    with pytest.raises(PackError, match=r"dataset\.yaml can't be read: its aliases"):
        read_field_map(str(tmp_path))
    (meta / "split.yaml").write_text(f"{LAUGHS}split_parts: {{train: [a.tar]}}\nexclude: *j\n")
    with pytest.raises(PackError, match=r"split\.yaml can't be read: its aliases"):
        read_prepared_folder(str(tmp_path), "train")


def test_names_in_braces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever bound comes first: a process that has freed much may fill it for a while."""
    monkeypatch.setattr("energon_pack.sources.prepared_folder._MAX_NAMES_BYTES", 48 << 20)
    monkeypatch.setattr("energon_pack.sources.prepared_folder._MAX_NAMES_SECONDS", 1.0)
    (tmp_path / ".nv-meta").mkdir()
    (tmp_path / ".nv-meta" / "split.yaml").write_text('split_parts: {train: ["{0..9999999999}.tar"]}\n')
    with pytest.raises(PackError, match=r"split_parts\.train: it takes more than (50\.3 MB|1 s)"):
        read_prepared_folder(str(tmp_path), "train")


def test_json_that_is_nested_without_end(tmp_path: Path) -> None:
    """A RecursionError is no error of JSON's, and came out as a traceback."""
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json(DEEP)
    with pytest.raises(json.JSONDecodeError):
        parse_json("[")
    (tmp_path / ".nv-meta").mkdir()
    (tmp_path / ".nv-meta" / "split.json").write_text(DEEP)
    with pytest.raises(PackError, match=r"split\.json can't be read: nested too deeply"):
        read_prepared_folder(str(tmp_path), None)


def test_archives_that_hold_more_than_they_can(tmp_path: Path) -> None:
    """A medium in a zip is read whole."""
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.png", bytes(100 << 20))
        archive.writestr("b.png", b"b" * 1000)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:  # here, freed memory may serve
        said = fresh.submit(refusal_of_member, path, "a.png").result()
        assert fresh.submit(refusal_of_member, path, "b.png").result() == "1000 bytes"
    assert "'a.png' of the zip archive: BoundExceeded: it takes more than" in said


def refusal_of_member(path: Path, name: str) -> str:
    """Return why a member of an archive can't be read."""
    untrusted_input.enable_memory_bounds()
    vars(media_files).update(_MIN_MEMORY_BYTES=4 << 20)
    try:
        return f"{open_zip_member(str(path), name).size} bytes"
    except Skip as skip:
        return str(skip)


def test_extended_headers_without_end() -> None:
    """A tar may have gigabytes of them before a member: only what is read of them is kept."""
    assert _parse_pax(b"14 path=a.txt\n" + b"12 note=abc\n" + b"22 GNU.sparse.map=1,2\n") == {
        "path": "a.txt",
        "GNU.sparse": "",
    }
