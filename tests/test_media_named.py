"""What a sample seems to hold counts: where it can't be read, and where the field that names it is not read."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from energon_pack.config import Format, PackConfig
from energon_pack.online.given import Given
from energon_pack.pack import pack
from energon_pack.samples.named import named_media
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Skip
from support.packed import json_lines
from support.samples import chat, picture, write_tar

Make = Callable[..., PackConfig]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"picture": "a/b.png"}, ["a/b.png"]),
        ({"media": [{"file": "clip.MP4"}]}, ["clip.MP4"]),
        ({"messages": [{"content": "see a.png"}]}, []),
        ({"format": "png", "note": "of\na.png", "size": 3, "url": None}, []),
    ],
    ids=["a field", "deep in one", "a conversation may speak of files", "no names"],
)
def test_names_of_media(fields: dict[str, Any], expected: list[str]) -> None:
    assert list(named_media(fields)) == expected


def lines_of(path: Path, *values: Any) -> Path:
    (path / "0.png").write_bytes(picture())
    file = path / "lines.jsonl"
    file.write_text("".join(f"{json.dumps(value)}\n" for value in values))
    return file


def test_a_line_of_images_that_has_no_answer_is_no_text(config: Make, tmp_path: Path) -> None:
    """It was all there was of `text`: a set of 299 good lines and this one was refused, whatever max_skipped."""
    good = {"image": "0.png", "question": "<image>?", "answer": "yes"}
    bad = {"image": "0.png", "messages": [{"role": "user", "content": "<image>?"}]}
    run = config(lines_of(tmp_path, *[good] * 9, bad), source__format=Format.jsonl, max_skipped=0.2)
    figures = pack(run)
    (entry,) = json_lines(Path(run.output.dir) / str(run.output.name) / "skipped.jsonl")
    assert (figures["samples_packed"], entry["reason"], entry["media_type"]) == (9, "no_assistant_turn", "image")


def test_a_conversation_in_memory_that_can_not_be_read_is_of_its_images() -> None:
    item = {"images": [picture()], "messages": [{"role": "user", "content": "<image><image>?"}]}
    with pytest.raises(Skip) as told:
        Given([item], ReadSettings(), None).read(0)
    assert told.value.media_type == "image"


def test_a_name_that_is_not_read_is_told(config: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Pictures under a name of a user's own were packed as texts, in silence."""
    lines = [{"picture": "0.png", "question": "What?", "answer": "Red."}, {"question": "1 + 1?", "answer": "2"}]
    figures = pack(config(lines_of(tmp_path, *lines), source__format=Format.jsonl))
    assert (figures["samples_packed"], figures["samples_with_media_unread"]) == (2, 1)
    assert "noted: 1 sample with media unread" in capsys.readouterr().out


def test_roles_that_have_changed_places_are_told(config: Make, tmp_path: Path) -> None:
    """Questions were trained on and answers were not, and nothing said so; a greeting first is told with them."""
    asked, answered = {"role": "user", "content": "a?"}, {"role": "assistant", "content": "b"}
    lines = [{"messages": turns} for turns in ([asked, answered], [answered, asked], [answered])]
    figures = pack(config(lines_of(tmp_path, *lines), source__format=Format.jsonl))
    assert (figures["samples_packed"], figures["samples_with_assistant_first"]) == (3, 1)


def test_a_picture_under_a_name_of_no_medium_is_told(config: Make, tmp_path: Path) -> None:
    """In a tar, as `a0.img`; a part that is something else is none of it."""
    answer = chat("What?", "Red.")
    tar = write_tar(
        tmp_path / "s" / "0.tar",
        {"a.json": answer, "a.img": picture(), "b.json": answer, "b.cls": b"7", "c.json": answer},
    )
    figures = pack(config(tar.parent))
    assert (figures["samples_packed"], figures["samples_with_media_unread"]) == (3, 1)
