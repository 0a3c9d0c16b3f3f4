"""A file that a copy broke off, in every form of text: it is refused as a cut tar is, or its whole samples are kept."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energon_pack.config import OnDamaged
from energon_pack.errors import PackError
from energon_pack.pack import pack
from energon_pack.samples.skip import Skip
from energon_pack.sources.find import shard_of
from energon_pack.sources.inside import open_medium
from energon_pack.sources.jsonl.dialects import Lines
from energon_pack.sources.jsonl.line_index import index_lines
from energon_pack.sources.shard import JsonlShard
from energon_pack.sources.wds import about_of, damage_of
from support.packed import Make
from support.running import command_here

TURNS = [{"role": "user", "content": "ä?"}, {"role": "assistant", "content": '日本 "}]\\ [{'}]
LINE = json.dumps({"messages": TURNS}, ensure_ascii=False).encode()


def index(path: Path, data: bytes) -> tuple[list[tuple[str, str | None]], list[str]]:
    """Keys with their reasons, and what is damaged."""
    path.write_bytes(data)
    table = shard_of(path.name, str(path), JsonlShard, {"lines": Lines(str(path.parent))}).index()
    rows = [(row["key"], row["reason"]) for row in table.to_pylist()]
    return rows, [what for _, what in damage_of(about_of(table))]


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
        (half, {"part": "0/1", "stage": "lengths"}),
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
