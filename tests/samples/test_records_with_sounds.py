"""Sounds in records: every spelling in use gives the same sample."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from energon_pack.samples.conversation import match_placeholders_with_media, options_of
from energon_pack.samples.record import with_use_audio_setting
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Skip
from energon_pack.sources.find import make_shard_of_file
from energon_pack.sources.jsonl.dialects import RowSettings, parse_row
from energon_pack.sources.named_bytes import may_have_base64
from energon_pack.sources.reader import SourceReader
from energon_pack.sources.sample import read_sample
from energon_pack.sources.shard import JsonlShard
from energon_pack.sources.source_file import IndexRow, rows_of
from support.samples import sound

ANSWER = {"role": "assistant", "content": "Hello."}
HEARD = [{"role": "user", "content": "<audio>What is said?"}, ANSWER]


def asked(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "What is said?"}]}, ANSWER]


@pytest.mark.parametrize(
    "record",
    [
        {"messages": HEARD, "audios": ["a.wav"]},
        {"messages": [{"role": "user", "content": "What is said?"}, ANSWER], "audio": "a.wav"},
        {"messages": HEARD, "audios": [{"path": "a.wav"}]},
        {"messages": asked({"type": "audio", "audio": "a.wav"})},
        {"messages": asked({"type": "audio", "path": "a.wav"})},
        {"messages": asked({"type": "audio_url", "audio_url": {"url": "a.wav"}})},
        {"messages": asked({"type": "input_audio", "input_audio": {"data": "a.wav", "format": "wav"}})},
    ],
)
def test_each_spelling(record: dict[str, Any]) -> None:
    read = parse_row(record, RowSettings("/data"), ReadSettings())
    assert read.listed_media == ["a.wav"]
    assert match_placeholders_with_media(read, ["audio"]).messages == HEARD


def test_media_of_three_kinds_find_their_places() -> None:
    turns = [{"role": "user", "content": "<audio><video><image><audio>"}, ANSWER]
    lists = {"audios": ["a.wav", "b.wav"], "images": ["c.png"], "videos": ["d.mp4"]}
    read = parse_row({"messages": turns, **lists}, RowSettings("/data"), ReadSettings())
    names, kinds = read.listed_media or [], ["image", "video", "audio", "audio"]
    assert [names[i] for i in match_placeholders_with_media(read, kinds).order] == ["a.wav", "d.mp4", "c.png", "b.wav"]


def test_a_record_says_whether_its_videos_are_heard() -> None:
    read = parse_row(
        {"messages": HEARD, "videos": ["a.mp4"], "use_audio_in_video": True}, RowSettings("/data"), ReadSettings()
    )
    assert options_of(read.fields).use_audio_in_video
    assert options_of(with_use_audio_setting(read, ReadSettings(use_audio_in_video=False)).fields).use_audio_in_video
    silent = parse_row({"messages": HEARD, "videos": ["a.mp4"]}, RowSettings("/data"), ReadSettings())
    assert not options_of(silent.fields).use_audio_in_video
    assert options_of(with_use_audio_setting(silent, ReadSettings(use_audio_in_video=True)).fields).use_audio_in_video
    with pytest.raises(Skip, match=r"bad_message: use_audio_in_video is 'yes', not true or false"):
        options_of({"use_audio_in_video": "yes"})


def test_base64_in_a_line(tmp_path: Path) -> None:
    """OpenAI's `input_audio`; an MP3 begins with no letters of its own."""
    data = sound(900)
    part = {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode(), "format": "wav"}}
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps({"messages": asked(part)}) + "\n")
    shard = make_shard_of_file("a.jsonl", str(file), JsonlShard, {"row_settings": RowSettings(str(tmp_path))})
    (row,) = rows_of(shard.index(), IndexRow)
    with SourceReader() as reader:
        read = read_sample(reader, shard, row, ReadSettings())
        assert read.media[0].num_samples == 900
        assert read.messages == HEARD
    for head in (
        b"ID3\x04",
        b"\xff\xfb\x50",
        b"\xff\xf3\x48",
        b"OggS",
        b"fLaC",
        b"\x1a\x45\xdf\xa3",
        b"\0\0\0\x1cftyp",
    ):
        assert may_have_base64(json.dumps(base64.b64encode(head + bytes(300)).decode()).encode()), head
    assert not may_have_base64(json.dumps("//I say " + "many words " * 40).encode())
