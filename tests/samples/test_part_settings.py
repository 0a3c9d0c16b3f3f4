"""What content parts say of their media stays with them, in whatever order the sample lists its files.

A picture would get the size of another, and a part of a conversation that of the whole's first.
"""

from typing import Any

import pytest

from energon_pack.samples.conversation import place
from energon_pack.samples.cut import Cut, fields_of_part
from energon_pack.samples.media.asked import as_asked
from energon_pack.samples.media.medium import Media
from energon_pack.samples.options import options_of
from energon_pack.samples.record import parse_record
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Skip
from energon_pack.templates.sample import as_videos


def settings_of(messages: Any, kinds: list[str], **fields: Any) -> Any:
    placed = place(parse_record({"messages": messages, **fields}, ReadSettings()), kinds)
    return placed.order, [m["content"] for m in placed.messages], placed.record.fields.get("media_settings")


def turns(*contents: Any) -> list[dict[str, Any]]:
    return [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)]


IMAGE, VIDEO = {"type": "image", "max_pixels": 9}, {"type": "video", "fps": 2}
TEXT = {"type": "text", "text": "?"}


def test_settings_are_in_the_order_of_the_placeholders() -> None:
    """The sample lists its image first, its text names the video first."""
    found = settings_of(turns([VIDEO, TEXT, IMAGE], "That.", "<image>", "Yes."), ["image", "image", "video"])
    assert found == ([2, 0, 1], ["<video>?<image>", "That.", "<image>", "Yes."], [{"fps": 2}, {"max_pixels": 9}, None])


def test_placeholders_that_are_text_have_none() -> None:
    """The assistant spells more than there are media."""
    _, _, said = settings_of(turns([IMAGE, TEXT], "I see <image>."), ["image"])
    assert said == [{"max_pixels": 9}]


def test_what_is_said_twice_and_what_is_not_said() -> None:
    """The part goes first; `null` says nothing, and samples without any have no field."""
    both = settings_of(turns([IMAGE, TEXT], "a"), ["image"], media_settings=[{"max_pixels": 7, "min_pixels": 5}])
    assert both[2] == [{"max_pixels": 9, "min_pixels": 5}]
    assert settings_of(turns([{"type": "image", "max_pixels": None}], "a"), ["image"])[2] is None
    with pytest.raises(Skip, match="media_settings is no list of 1 entries"):
        settings_of(turns([IMAGE, TEXT], "a"), ["image"], media_settings=[])


@pytest.mark.parametrize("number", [10**400, -(10**400), float("inf")])
def test_numbers_that_no_float_holds(number: float) -> None:
    """They ended the run: Python can't compare all of its whole numbers with a float by `isfinite`."""
    with pytest.raises(Skip, match="bad_message: max_pixels is"):
        frames({"max_pixels": number})


def test_a_part_of_a_sample_has_its_own() -> None:
    fields = {"media_settings": [{"fps": 2}, {"max_pixels": 9}, None]}
    cut = Cut("2of2", 2, 4, None, "vii")
    assert fields_of_part(fields, cut, [1, 2]) == {"media_settings": [{"max_pixels": 9}, None]}


def frames(*said: Any, size: tuple[int, int] = (8, 8)) -> list[Media]:
    media = [Media("image", *size, "jpg") for _ in said]
    return as_asked(media, None, options_of({"media_settings": list(said)}))


def test_a_list_of_frames_is_seen_as_a_video() -> None:
    """At the place of its first; a text that spells a placeholder stays text."""
    media = frames(None, {"list_of_frames": 2, "sample_fps": 4, "raw_fps": 24}, None)
    messages = turns("<image> and <image><image>!", "a <video>")
    seen, videos = as_videos(messages, media)
    text = {"type": "text", "text": "a <video>"}
    assert seen[0]["content"] == [
        {"type": "image"}, {"type": "text", "text": " and "}, {"type": "video"}, {"type": "text", "text": "!"},
    ]  # fmt: skip
    assert seen[1]["content"] == [text]
    assert [(m.kind, m.num_frames, m.fps, m.frames) for m in videos] == [
        ("image", 0, 0.0, ()),
        ("video", 2, 24, (0, 1)),
    ]
    assert as_videos(seen, videos) == (seen, videos)
    assert as_videos(messages, media[:1]) == (messages, media[:1])


def test_lists_that_are_none() -> None:
    with pytest.raises(Skip, match="placeholder_mismatch: text stands between"):
        as_videos(turns("<image>, <image>", "a"), frames({"list_of_frames": 2}, None))
    for wrong in ([{"list_of_frames": 3}, None], [{"list_of_frames": 2}, {"max_pixels": 9}], [{"list_of_frames": 1.5}]):
        with pytest.raises(Skip, match="bad_message"):
            frames(*wrong)
    media, options = [Media("image", 8, 8), Media("video", 8, 8)], {"media_settings": [{"list_of_frames": 2}, None]}
    with pytest.raises(Skip, match="bad_message: list_of_frames is 2: there are no 2 images"):
        as_asked(media, None, options_of(options))
