"""One way to read a sample: what measuring saw is what cutting, writing and the audit see when they read it again.

Where two of them differed, a length would be of another text than the one that is packed.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from energon_pack.loading import load_multi_mix_qa
from energon_pack.samples.conversation import ReadSample
from energon_pack.samples.cut import Cut
from energon_pack.samples.sample import MediaPart, Part
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Skip
from energon_pack.sources.find import make_shard_of_file
from energon_pack.sources.part_names import FieldMap
from energon_pack.sources.reader import SourceReader
from energon_pack.sources.sample import read_measured_sample, read_sample, read_without_opening_media
from energon_pack.sources.shard import Shard, TarShard
from energon_pack.sources.source_file import IndexRow, MeasuredRow, rows_of
from support.samples import chat, npy, picture, write_tar

READ = ReadSettings()


SAMPLE = {
    "0.png": picture(60, 30, "PNG"),
    "1.jpg": picture(40, 30),
    "a.npy": npy(0),
    "b.npy": npy(15),
    "json": chat(
        "<image>what?", "this", "<image>and?", "that", name=["1.jpg", "0.png"],
        fps=30, patch_positions=["a.npy", "b.npy"], id=7,
    ),
}  # fmt: skip


def row_of(folder: Path, files: dict[str, bytes]) -> tuple[Shard, IndexRow]:
    shard = make_shard_of_file(
        "s.tar", str(write_tar(folder / "s.tar", {f"k.{name}": data for name, data in files.items()}))
    )
    (row,) = rows_of(shard.index(), IndexRow)
    return shard, row


def measured(row: IndexRow, sample: ReadSample, cut: Cut | None = None) -> MeasuredRow:
    """The row that measuring makes of a sample, as far as reading it again needs it."""
    positions = [part for part in sample.positions if part is not None]
    place = row.key, row.record_part, row.record_offset, row.record_size
    return MeasuredRow(*place, sample.parts, positions, cut, 0, 0, 0)


def texts(messages: list[dict[str, Any]]) -> list[str]:
    return [message["content"] for message in messages]


@pytest.fixture
def reader() -> Iterator[SourceReader]:
    with SourceReader() as reader:
        yield reader


def test_what_is_read_again_is_what_was_read(tmp_path: Path, reader: SourceReader) -> None:
    shard, row = row_of(tmp_path, SAMPLE)
    sample = read_sample(reader, shard, row, READ)
    assert [(part.name, part.kind, part.extension) for part in sample.parts] == [
        ("1.jpg", "image", "jpg"),
        ("0.png", "image", "png"),
    ]
    assert [medium.width for medium in sample.media] == [40, 60]
    assert texts(sample.messages) == ["<image>what?", "this", "<image>and?", "that"]
    assert texts(sample.timed_messages)[::2] == ["<0.0 seconds><image>\nwhat?", "<0.5 seconds><image>\nand?"]
    assert (sample.fields["id"], sample.is_timed, sample.placeholders_put_in) == (7, True, False)

    again = measured(row, sample)
    assert read_measured_sample(reader, shard, again, READ) == sample
    assert read_without_opening_media(reader, shard, again, READ, sample.raw) == sample._replace(media=[])
    assert load_multi_mix_qa(SAMPLE | {"__key__": b"k"})["messages"] == sample.timed_messages  # the training side


def test_media_without_placeholders_are_put_in_each_time(tmp_path: Path, reader: SourceReader) -> None:
    shard, row = row_of(tmp_path, {"0.jpg": picture(), "json": chat("what?", "this")})
    sample = read_sample(reader, shard, row, READ)
    assert sample.placeholders_put_in
    assert not sample.is_timed
    again = read_measured_sample(reader, shard, measured(row, sample), READ)
    assert texts(again.timed_messages) == texts(again.messages) == ["<image>what?", "this"]


def test_a_part_holds_its_own_media(tmp_path: Path, reader: SourceReader) -> None:
    """`<image>` in an answer is text here, as the images are all the user's."""
    kinds, value = ["image", "video", "image"], ("<image>a", "b <image>", "<video>c<image>", "d")
    raw = chat(*value, video_frames=[[0, 2]], id=7)

    def part(cut: Cut, own: list[str]) -> ReadSample:
        row = MeasuredRow("k", "json", 0, len(raw), [MediaPart("", 0, 0, kind, "") for kind in own], [], cut, 0, 0, 0)
        return read_without_opening_media(reader, TarShard("s.tar", "", 0, ""), row, READ, raw)

    first, second = part(Cut("1of2", 0, 2, None, "ivi"), kinds[:1]), part(Cut("2of2", 2, 4, None, "ivi"), kinds[1:])
    assert (texts(first.messages), first.fields) == (["<image>a", "b <image>"], {"video_frames": [], "id": 7})
    assert (texts(second.messages), second.fields["video_frames"]) == (["<video>c<image>", "d"], [[0, 2]])


def test_times_and_positions_of_a_part(tmp_path: Path, reader: SourceReader) -> None:
    """Its text has the times that it has in the whole, and it names the files of its own images."""
    shard, row = row_of(tmp_path, SAMPLE)
    whole = read_sample(reader, shard, row, READ)
    cut = measured(row, whole._replace(parts=whole.parts[1:]), Cut("2of2", 2, 4, None, "ii"))
    part = read_without_opening_media(reader, shard, cut, READ, whole.raw)
    assert texts(part.timed_messages) == ["<0.5 seconds><image>\nand?", "that"]
    assert part.fields["patch_positions"] == ["b.npy"]
    assert part.positions == whole.positions[1:]
    assert isinstance(part.positions[0], Part)


def test_a_part_without_the_one_image_that_has_positions(tmp_path: Path, reader: SourceReader) -> None:
    """`patch_positions` may be one name, not a list: it is the whole's, whatever its parts hold."""
    one = {"0.jpg": picture(), "0.npy": npy(15)}
    shard, row = row_of(tmp_path, one | {"json": chat("<image>a", "b", "c", "d", fps=30, patch_positions="0.npy")})
    whole = read_sample(reader, shard, row, READ)
    first = measured(row, whole, Cut("1of2", 0, 2, None, "i"))
    second = measured(row, whole._replace(parts=[]), Cut("2of2", 2, 4, None, "i"))
    parts = [read_without_opening_media(reader, shard, cut, READ, whole.raw) for cut in (first, second)]
    assert [texts(part.timed_messages) for part in parts] == [["<0.5 seconds><image>\na", "b"], ["c", "d"]]
    assert [(part.positions, part.is_timed) for part in parts] == [(whole.positions, True), ([], True)]


@pytest.mark.parametrize(
    ("files", "seems", "reason"),
    [
        ({"0.jpg": b"no image"}, "image", "unreadable_media"),
        ({"0.mp4": picture()}, "image", "placeholder_mismatch"),  # content decides
        ({"0.bin": b""}, None, "missing_media"),
        ({"0.jpg": picture(), "0.npy": b""}, "image", "unreadable_media"),
    ],
)
def test_what_a_sample_that_is_left_out_seems_to_be(
    tmp_path: Path, reader: SourceReader, files: dict[str, bytes], seems: str | None, reason: str
) -> None:
    value = json.loads(chat("<image><image>?" if reason == "placeholder_mismatch" else "<image>?", "a", fps=1))
    value |= {"patch_positions": ["0.npy"]} if "0.npy" in files else {}
    shard, row = row_of(tmp_path, files | {"json": json.dumps(value).encode()})
    with pytest.raises(Skip, match=reason) as skip:
        read_sample(reader, shard, row, READ)
    assert skip.value.media_type == seems


@pytest.mark.parametrize("key", ["videos", "video"])
@pytest.mark.parametrize("content", ["What?", "<image>\nWhat?"])
@pytest.mark.parametrize(
    ("part", "name"),
    [("gif", "k.gif"), ("0.gif", "0.gif"), ("0.gif", "clips/17.gif"), ("mp4", "clips/17.mp4"), ("mp4", "./k.mp4")],
)
def test_a_moving_image_of_a_tar_is_no_video(
    tmp_path: Path, reader: SourceReader, key: str, content: str, part: str, name: str
) -> None:
    """It was trained as one still, in packs and from unpacked samples."""
    listed = {key: [name] if key == "videos" else name}
    files = {part: picture(40, 30, "GIF"), "json": chat(content, "It moves.", **listed)}
    shard, row = row_of(tmp_path, files)
    said = f"placeholder_mismatch: {key} lists {name}, which is an image: convert it to mp4, or list it under image"
    for read in (lambda: read_sample(reader, shard, row, READ), lambda: load_multi_mix_qa(files | {"__key__": b"k"})):
        with pytest.raises(Skip, match=re.escape(said)):
            read()


def test_a_still_of_a_tar_is_a_frame_in_any_letters(tmp_path: Path, reader: SourceReader) -> None:
    """Packing took `0.JPG` under `videos` for an image, and training from unpacked samples refused it."""
    files = {"0.JPG": picture(40, 30, "JPEG"), "json": chat("<image>What?", "It stands.", videos=["0.JPG"])}
    shard, row = row_of(tmp_path, files)
    assert [medium.kind for medium in read_sample(reader, shard, row, READ).media] == ["image"]
    assert len(load_multi_mix_qa(files | {"__key__": b"k"})["image"]) == 1


@pytest.mark.parametrize(
    ("fields", "content"),
    [
        ({"image": "k.gif"}, "What?"),
        ({"image": "k.gif", "video": "k.gif"}, "What?"),  # of two keys of one name, the first says what it is
        ({"media": "image", "file_name": "k.gif"}, "What?"),
        ({"video": "clips/17.mp4"}, "<image>What?"),  # its picture: no part is named so
        ({"name": "gif"}, "<image>What?"),
        ({"videos": [["gif"]]}, "<image>What?"),  # frames
    ],
)
def test_an_image_that_no_key_of_videos_lists_is_one(
    tmp_path: Path, reader: SourceReader, fields: dict[str, Any], content: str
) -> None:
    """A check of kinds that read too much would leave out samples that are right."""
    shard, row = row_of(tmp_path, {"gif": picture(40, 30, "GIF"), "json": chat(content, "a", **fields)})
    assert [part.kind for part in read_sample(reader, shard, row, READ).parts] == ["image"]


def test_a_text_begins_behind_its_byte_order_mark(tmp_path: Path, reader: SourceReader) -> None:
    """Notepad writes the mark: it was the first token of each caption."""
    files = {"jpg": picture(), "txt": b"\xef\xbb\xbfA red field."}
    shard, row = row_of(tmp_path, files)
    assert texts(read_sample(reader, shard, row, READ).messages)[-1] == "A red field."
    for txt in (files["txt"], files["txt"].decode()):
        assert load_multi_mix_qa({**files, "txt": txt})["messages"][-1]["content"] == "A red field."
    field_map = FieldMap((("caption", (("txt",),)),), ("jpg",))
    assert field_map.read_fields(files["txt"], "txt") == {"caption": "A red field."}
