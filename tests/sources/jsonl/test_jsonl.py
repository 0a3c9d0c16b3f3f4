"""JSONL as a source: where its samples are, which of their spellings are understood, and which media are theirs."""

import gzip
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energon_pack.errors import PackError
from energon_pack.samples.conversation import match_placeholders_with_media
from energon_pack.samples.record import Record
from energon_pack.samples.settings import Frames, ReadSettings
from energon_pack.samples.skip import Reason, Skip
from energon_pack.sources.find import make_shard_of_file
from energon_pack.sources.jsonl.dialects import RowSettings, parse_row
from energon_pack.sources.shard import JsonlShard
from support.finding import find_lines, find_shards
from support.samples import write_tar


def index(path: Path, data: bytes) -> list[tuple[str, bytes, str | None]]:
    path.write_bytes(data)
    shard = make_shard_of_file(path.name, str(path), JsonlShard, {"row_settings": RowSettings(str(path.parent))})
    rows = shard.index().to_pylist()
    places = ((row["record_offset"], row["record_size"]) for row in rows)
    texts = [data[offset : offset + size] for offset, size in places]
    return [(row["key"], text, row["reason"]) for row, text in zip(rows, texts, strict=True)]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"a": 1}\n{"a": 2}\n', [("1", b'{"a": 1}'), ("2", b'{"a": 2}')]),
        (b'{"a": 1}\r\n\n  \n{"a": 2}', [("1", b'{"a": 1}'), ("4", b'{"a": 2}')]),  # as an editor counts
        (b"{\nnot JSON\n{}", [("1", b"{"), ("2", b"not JSON"), ("3", b"{}")]),  # each costs itself alone
        (b'[{"role": "user"}]\n[]\n', [("1", b'[{"role": "user"}]'), ("2", b"[]")]),  # messages on every line
        (b'[{"a": "]"}\n,\n[1, {}],{"c": "\\"}"}]', [("1", b'{"a": "]"}'), ("2", b"[1, {}]"), ("3", b'{"c": "\\"}"}')]),
        (b'\xef\xbb\xbf[{"a": 1}]', [("1", b'{"a": 1}')]),
        (b"[]", []),
        (b"\n\n", []),
        (b"[1, null,]", [("1", b"1"), ("2", b"null")]),
    ],
)  # fmt: skip
def test_places_of_samples(tmp_path: Path, data: bytes, expected: list[tuple[str, bytes]]) -> None:
    assert index(tmp_path / "x.jsonl", data) == [(*item, None) for item in expected]


def test_a_broken_array_keeps_what_is_before(tmp_path: Path) -> None:
    rows = index(tmp_path / "x.json", b'[{"a": 1},\n {"b": 2},\n {"c": ')
    assert [(key, reason) for key, _, reason in rows] == [("1", None), ("2", None), ("3", "invalid_json")]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('a"\\]}[{, \n\u00e9'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('a]"'), inner, max_size=3),
    max_leaves=8,
)


@given(values=st.lists(VALUES, min_size=1, max_size=6), indent=st.sampled_from([None, 1]))
@settings(deadline=None, max_examples=100)
def test_elements_of_any_array(tmp_path_factory: pytest.TempPathFactory, values: list[Any], indent: int | None) -> None:
    path = tmp_path_factory.mktemp("array") / "x.json"
    rows = index(path, json.dumps(values, indent=indent).encode())
    assert [json.loads(text) for _, text, _ in rows] == values


def test_a_file_written_anew_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n')
    shard = make_shard_of_file("x.jsonl", str(path), JsonlShard, {"row_settings": RowSettings(".")})
    about = {"digest": shard.index().schema.metadata[b"digest"].decode()}
    assert shard.is_unchanged(about)
    path.write_text('{"b": 1}\n')
    assert not shard.is_unchanged(about)


@pytest.mark.parametrize("given", ["", "a.jsonl", "*.jsonl"])
def test_lines_given_as_tars_name_the_setting(tmp_path: Path, given: str) -> None:
    """`source=jsonl` is easily forgotten: the first message was "damaged tar … source.on_damaged=keep"."""
    (tmp_path / "a.jsonl").write_text("{}\n")
    with pytest.raises(PackError, match="source=jsonl reads JSONL"):
        find_shards(str(tmp_path / given))


def test_compressed_lines_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(b"{}"))
    with pytest.raises(PackError, match=r"x\.jsonl\.gz is compressed, .*: put what gunzip gives"):
        find_lines(str(tmp_path)).shards[0].index()


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
@pytest.mark.parametrize("text", ['{"a": "ä"}\n{"a": 2}\n', ' [\n{"a": 1}]'])
def test_another_encoding_is_named(tmp_path: Path, encoding: str, text: str) -> None:
    """Each line was `invalid_json`, "text is not valid Unicode", and half of them had another reason."""
    path = tmp_path / "x y.jsonl"
    path.write_bytes(text.encode(encoding))
    with pytest.raises(PackError, match=rf"x y\.jsonl is {encoding[:6].upper()}.*: iconv writes"):
        find_lines(str(tmp_path)).shards[0].index()


def test_what_is_no_jsonl_is_called_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    made: dict[str, Callable[[], object]] = {"Parquet": lambda: pq.write_table(pa.table({"a": [1]}), path)}
    made["a tar: source=wds"] = lambda: write_tar(path, {"a.json": b"{}"})
    made["a zip archive"] = lambda: zipfile.ZipFile(path, "w").writestr("a.jsonl", "{}")
    for what, write in made.items():
        write()
        with pytest.raises(PackError, match=rf"x\.jsonl is {what}"):
            find_lines(str(tmp_path)).shards[0].index()
        path.unlink()


@pytest.mark.parametrize("data", [b"\0" * 99 + b'\n{"a": 1}\n', b'{"\0": 1}\n{"a": 1}\n', b"\xff\xfe\n{}\n"])
def test_a_damaged_line_is_a_line(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.jsonl").write_bytes(data)
    assert find_lines(str(tmp_path)).shards[0].index()["key"].to_pylist() == ["1", "2"]


# ------------------------------------------------------------------------------------------------------ one line

USER, ANSWER = {"role": "user", "content": "<image>?"}, {"role": "assistant", "content": "yes"}
TURNS = [USER, ANSWER]
DATA = RowSettings("/data")


DATA = RowSettings("/data")


def parse(value: Any, lines: RowSettings = DATA) -> tuple[list[Any], list[str] | None, dict[str, Any]]:
    record = parse_row(value, lines, ReadSettings())
    return record.messages, record.listed_media, record.fields


@pytest.mark.parametrize(
    "value",
    [
        {"images": ["a.jpg"], "prompts": ["<image>?"], "captions": ["yes"]},
        {"images": ["a.jpg"], "prompts": [["<image>?"]], "captions": [["yes"]]},
        {"images": [["a.jpg"]], "prompts": "<image>?", "captions": "yes"},
        {"image": "a.jpg", "conversations": [{"from": "human", "value": "<image>?"}, {"from": "gpt", "value": "yes"}]},
        {"image": ["a.jpg"], "video": None, "videos": [], "messages": TURNS},
        {"images": [{"path": "a.jpg", "bytes": None}], "messages": TURNS},
        {"images": ["file://a.jpg"], "texts": TURNS},
    ],
)
def test_lines_that_mean_the_same(value: dict[str, Any]) -> None:
    assert parse(value) == (TURNS, ["a.jpg"], {})


def test_openai_messages_name_their_media_themselves() -> None:
    content = [{"type": "image_url", "image_url": {"url": "a.jpg"}}, {"type": "text", "text": "?"}]
    calls = [{"function": {"name": "f", "arguments": "{}"}}]
    tool = {"role": "tool", "content": "1"}
    messages = [{"role": "user", "content": content}, {"role": "assistant", "content": None, "tool_calls": calls}, tool]
    record = parse_row({"messages": [*messages, ANSWER], "tools": [{"f": 1}]}, RowSettings("/data"), ReadSettings())
    assert (record.listed_media, record.tools) == (["a.jpg"], [{"f": 1}])
    assert [m["role"] for m in record.messages] == ["user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": "a.jpg"},
        {"type": "image", "image": "file://a.jpg"},
        {"type": "image", "image": {"path": "a.jpg"}},
        {"type": "image", "path": "a.jpg"},
        {"type": "image", "url": "a.jpg"},
    ],
)
def test_spellings_of_an_image_in_a_message(part: dict[str, Any]) -> None:
    """Else the sample would be missing, or packed as text, without its image."""
    user = {"role": "user", "content": [part, {"type": "text", "text": "?"}]}
    assert parse({"messages": [user, ANSWER]})[1] == ["a.jpg"]


def test_a_message_may_not_name_what_is_no_file() -> None:
    """As in `images`: the ledger says why, and does not look for a file of that name."""
    for url in ("https://host/a.jpg", "data:image/png;base64,AAAA"):
        user = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}
        with pytest.raises(Skip) as skip:
            parse({"messages": [user, ANSWER]})
        assert skip.value.reason is Reason.UNSUPPORTED_MEDIA


def test_frames_take_the_place_of_their_video() -> None:
    asked = {"role": "user", "content": "<image> or <video>?"}
    for fields in ({"images": ["a.jpg", ["f0.jpg", "f1.jpg"]]}, {"images": "a.jpg", "videos": [["f0.jpg", "f1.jpg"]]}):
        messages, listed, _ = parse({**fields, "messages": [asked, ANSWER]})
        assert messages[0]["content"] == "<image> or <image><image>?"
        assert listed == ["a.jpg", "f0.jpg", "f1.jpg"]


def test_frames_before_an_image_stay_before_it() -> None:
    """`images` is read before `videos`: each placeholder would get another's picture."""
    value = {"images": ["a.jpg"], "videos": [["f0.jpg", "f1.jpg"]]}
    asked = [{"role": "user", "content": "<video> then <image>?"}, ANSWER]
    messages, listed, _ = parse({**value, "messages": asked})
    assert messages[0]["content"] == "<image><image> then <image>?"
    assert listed == ["f0.jpg", "f1.jpg", "a.jpg"]
    with pytest.raises(Skip, match="placeholder_mismatch"):
        parse({**value, "messages": asked, "patch_positions": ["a.npy", "", ""]})


def test_a_list_of_frames_is_one_video() -> None:
    """Two frames are one of the model's tokens deep; as images they were twice as long, and no video."""
    asked = [{"role": "user", "content": "<image><video>?"}, ANSWER]
    frames = {"images": ["a.jpg"], "videos": [["f0.jpg", "f1.jpg"]], "messages": asked}
    messages, listed, fields = parse(frames)
    assert (messages[0]["content"], listed) == ("<image><image><image>?", ["a.jpg", "f0.jpg", "f1.jpg"])
    assert fields == {"media_settings": [None, {"list_of_frames": 2}, None]}
    assert parse({**frames, "fps": [4]})[2]["media_settings"][1] == {"list_of_frames": 2, "fps": 4}
    assert parse({**frames, "sample_fps": 4})[2]["media_settings"][1] == {"list_of_frames": 2, "sample_fps": 4}
    said = parse({**frames, "media_settings": [{"max_pixels": 9}, {"max_pixels": 8}]})[2]["media_settings"]
    assert said == [{"max_pixels": 9}, {"list_of_frames": 2, "max_pixels": 8}, None]
    images = parse_row(frames, RowSettings(""), ReadSettings(frames=Frames.images))
    assert (images.listed_media, images.fields) == (listed, {})


def test_which_lists_are_no_video() -> None:
    """Frames under `images`, and frames with patch positions, are images, as LLaVA-OneVision-2 has them."""
    frames = [["f0.jpg", "f1.jpg"]]
    assert parse({"images": frames, "messages": TURNS})[2] == {}
    with_positions = {"videos": frames, "patch_positions": ["f0.npy", "f1.npy"], "messages": TURNS}
    assert parse(with_positions)[2] == {"patch_positions": ["f0.npy", "f1.npy"]}
    for wrong in ({"fps": [1, 2]}, {"media_settings": [None, None]}):
        with pytest.raises(Skip, match=r"bad_message: (fps is no list of 1|media_settings is no list of 1)"):
            parse({"videos": frames, "messages": TURNS, **wrong})


def test_a_content_part_with_a_list_of_frames() -> None:
    part = {"type": "video", "video": ["file://f0.jpg", "f1.jpg"], "sample_fps": 4}
    messages, listed, fields = parse({"messages": [{"role": "user", "content": [part]}, ANSWER]})
    assert listed == ["f0.jpg", "f1.jpg"]
    placed = match_placeholders_with_media(Record(messages, fields=fields), ["image", "image"])
    assert placed.messages[0]["content"] == "<image><image>"
    assert placed.record.fields == {"media_settings": [{"list_of_frames": 2, "sample_fps": 4}, None]}
    with pytest.raises(Skip, match="missing_media"):
        parse({"messages": [{"role": "user", "content": [{"type": "video", "video": [7]}]}, ANSWER]})


def test_frames_that_a_video_lists() -> None:
    video = {"path": "v.mp4", "frame_indices": [0, 4]}
    _, listed, fields = parse({"videos": [video], "messages": TURNS})
    assert (listed, fields) == (["v.mp4"], {"video_frames": [[0, 4]]})


@pytest.mark.parametrize("image", [7, {"bytes": "x"}, "https://x.org/a.jpg", "data:image/png;base64,xx", [[None]]])
def test_media_that_are_no_path(image: Any) -> None:
    with pytest.raises(Skip, match=r"missing_media|unsupported_media"):
        parse({"images": [image], "messages": TURNS})


def test_other_fields_travel() -> None:
    assert parse({"id": 3, "fps": 2, "image": "a.jpg", "messages": TURNS})[2] == {"id": 3, "fps": 2}


# ------------------------------------------------------------------------------------------------------ which files


@pytest.fixture
def meta(tmp_path: Path) -> Path:
    entries = {
        "alpaca": {"file_name": "a.jsonl", "formatting": "alpaca", "sample_ratio": 0.5},
        "chat": {
            "file_name": "sub/c.jsonl",
            "columns": {"messages": "talk", "images": "pics"},
            "tags": {"role_tag": "who", "content_tag": "says", "user_tag": "U", "assistant_tag": "A"},
            "media_dir": "media",
            "sample_ratio": 2,
        },
    }
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.jsonl").write_text('{"instruction": "<image>", "input": "?", "output": "yes"}\n')
    (tmp_path / "sub" / "c.jsonl").write_text(
        '{"pics": ["a.jpg"], "talk": [{"who": "U", "says": "<image>?"}, {"who": "A", "says": "yes"}]}\n'
    )
    path = tmp_path / "dataset_info.json"
    path.write_text(json.dumps(entries))
    return path


def test_a_meta_file_says_how_its_files_are_read(meta: Path) -> None:
    alpaca, chat = find_lines(str(meta)).shards
    assert (alpaca.name, chat.name, alpaca.sample_id("3")) == ("a.jsonl", "sub/c.jsonl", "a.jsonl:3")
    assert isinstance(alpaca, JsonlShard)
    assert isinstance(chat, JsonlShard)
    assert (alpaca.ratio, chat.ratio) == (0.5, 2.0)
    assert chat.media_root == str(meta.parent / "media")
    assert parse(json.loads(Path(chat.path).read_text()), chat.row_settings) == (TURNS, ["a.jpg"], {})
    assert [m["content"] for m in parse(json.loads(Path(alpaca.path).read_text()), alpaca.row_settings)[0]] == [
        "<image>\n?",
        "yes",
    ]


def test_files_folders_globs_and_lists(meta: Path) -> None:
    folder = meta.parent
    for path in (folder, f"{folder}/**/*.jsonl", [f"{folder}/a.jsonl", f"{folder}/sub"]):
        source = find_lines(str(path) if isinstance(path, Path) else path)
        assert [shard.name for shard in source.shards] == ["a.jsonl", "sub/c.jsonl"]
    assert find_lines(f"{folder}/sub/c.jsonl").shards[0].media_root == str(folder / "sub")
    assert find_lines(f"{folder}/a.jsonl", str(folder / "sub")).shards[0].media_root == str(folder / "sub")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"file_name": None, "hf_hub_url": "x/y"}, "has no file_name"),
        ({"file_name": "gone.jsonl"}, "no such file"),
        ({"sample_ratio": -1}, "sample_ratio is -1"),
        ({"media_dir": 5}, "media_dir is 5"),
        ({"columns": ["a"]}, "columns is"),
    ],
)
def test_a_meta_file_that_says_nonsense(meta: Path, change: dict[str, Any], message: str) -> None:
    entries = json.loads(meta.read_text())
    entries["chat"] |= change
    meta.write_text(json.dumps(entries))
    with pytest.raises(PackError, match=message):
        find_lines(str(meta))


def test_nothing_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(PackError, match=r"no \*\.jsonl there"):
        find_lines(str(tmp_path))
    with pytest.raises(PackError, match=r"source\.media_root=/nowhere"):
        find_lines(str(tmp_path), "/nowhere")
