"""Placeholders and media match one to one, or the sample is skipped: a wrong match trains on the wrong picture."""

import pickle

import pytest

from energon_pack.samples.placeholders import place_media, split_content
from energon_pack.samples.sample import media_type
from energon_pack.samples.skip import Reason, Skip


def conversation(*texts: object) -> list[dict[str, object]]:
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


def contents(messages: list[dict[str, object]]) -> list[object]:
    return [message["content"] for message in messages]


def test_placeholders_become_parts_in_order() -> None:
    messages, order, put_in = place_media(
        conversation("a <image> b<video>", "c", "<image>", "d"), ["video", "image", "image"]
    )
    assert (order, put_in) == ([1, 0, 2], False)  # image, video, image
    kinds = ["image", "video", "image"]
    assert contents(split_content(messages, kinds)) == [
        [{"type": "text", "text": "a "}, {"type": "image"}, {"type": "text", "text": " b"}, {"type": "video"}],
        "c",
        [{"type": "image"}],
        "d",
    ]


def test_a_placeholder_of_an_absent_kind_is_text() -> None:
    messages, order, put_in = place_media(conversation("write <image> and <video>", "ok"), [])
    assert (order, put_in) == ([], False)
    assert contents(split_content(messages, [])) == ["write <image> and <video>", "ok"]
    messages, _, _ = place_media(conversation("<image> in a <video> tag", "ok"), ["image"])
    assert contents(split_content(messages, ["image"]))[0] == [
        {"type": "image"},
        {"type": "text", "text": " in a <video> tag"},
    ]


def test_placeholders_are_put_in_where_there_are_none() -> None:
    messages, order, put_in = place_media(
        [{"role": "system", "content": "s"}, *conversation("what?", "that")], ["image", "image"]
    )
    assert (order, put_in) == ([0, 1], True)
    assert messages[1]["content"] == "<image><image>what?"
    again = place_media(messages, ["image", "image"])  # what is stored is read back the same
    assert again == (messages, [0, 1], False)


def test_the_assistant_may_spell_a_placeholder() -> None:
    messages, order, _ = place_media(conversation("<image> which tag?", "Use <image> for it"), ["image"])
    assert order == [0]
    parts = split_content(messages, ["image"])
    assert parts[0]["content"][0] == {"type": "image"}
    assert parts[1]["content"] == "Use <image> for it"


def test_an_image_may_stand_in_an_assistant_turn() -> None:
    messages, _, _ = place_media(conversation("draw", "<image>"), ["image"])
    assert split_content(messages, ["image"])[1]["content"] == [{"type": "image"}]


@pytest.mark.parametrize(
    ("texts", "kinds"),
    [
        (("<image><image>", "x"), ["image"]),
        (("<image>", "x"), ["image", "image"]),
        (("<video>", "x"), ["video", "image"]),
        (("<image>", "<image>"), ["image", "image", "image"]),
    ],
)
def test_any_other_mismatch_is_a_skip(texts: tuple[str, ...], kinds: list[str]) -> None:
    with pytest.raises(Skip) as skip:
        place_media(conversation(*texts), kinds)
    assert skip.value.reason is Reason.PLACEHOLDER_MISMATCH


def test_media_without_a_user_turn_have_no_place() -> None:
    with pytest.raises(Skip):
        place_media([{"role": "assistant", "content": "hi"}], ["image"])


def test_structured_content_is_stored_as_a_string_unless_it_spells_a_placeholder() -> None:
    named = [{"type": "image", "name": "0.jpg"}, {"type": "text", "text": "what?"}]
    assert place_media(conversation(named, "x"), ["image"])[0][0]["content"] == "<image>what?"
    parts = [{"type": "image"}, {"type": "text", "text": "what is <image>?"}]
    messages, order, _ = place_media(conversation(parts, "x"), ["image"])
    assert (messages[0]["content"], order) == (parts, [0])
    assert split_content(messages, ["image"])[0]["content"] == parts


def test_a_skip_travels_between_processes() -> None:
    skip = pickle.loads(pickle.dumps(Skip(Reason.BAD_MESSAGE, "why")))
    assert (skip.reason, skip.detail, str(skip)) == (Reason.BAD_MESSAGE, "why", "bad_message: why")


def test_media_types() -> None:
    types = [media_type(kinds) for kinds in ([], ["image"], ["video", "video"], ["image", "video"])]
    assert types == ["text", "image", "video", "mix"]


def test_a_video_asked_for_is_no_place_for_images() -> None:
    """Put in before it, they would be a guess, and `<video>` would be trained on as text."""
    for kinds in (["image"], ["image", "image"]):
        with pytest.raises(Skip, match="1 video in the text"):
            place_media([{"role": "user", "content": "<video>what?"}, {"role": "assistant", "content": "a"}], kinds)
    spoken = [{"role": "user", "content": "what?"}, {"role": "assistant", "content": "a <video>"}]
    assert place_media(spoken, ["image"])[0][0]["content"] == "<image>what?"
