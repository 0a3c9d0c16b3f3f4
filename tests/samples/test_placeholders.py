"""Placeholders and media match one to one, or the sample is skipped: a wrong match trains on the wrong picture."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from energon_pack.config import PackConfig
from energon_pack.pack import pack
from energon_pack.samples.placeholders import place_media, split_content_at_placeholders
from energon_pack.samples.raw_record import parse_sample_json
from energon_pack.samples.record import parse_record
from energon_pack.samples.sample import media_type
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Reason, Skip
from support.packed import json_lines
from support.samples import chat, picture, write_tar


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
    assert contents(split_content_at_placeholders(messages, kinds)) == [
        [{"type": "text", "text": "a "}, {"type": "image"}, {"type": "text", "text": " b"}, {"type": "video"}],
        "c",
        [{"type": "image"}],
        "d",
    ]


@pytest.mark.parametrize(
    ("indices", "refused"),
    [
        ([0, 1], None), (["0", "1"], None), ([None, 1], None), ([1, 0], 1), ([0, 0], 0), ([1, 2], 1), ([None, 0], 0),
        ([0, "b"], "b"), ([True, 1], True),
    ],
)  # fmt: skip
def test_parts_whose_index_is_another_order_are_refused(indices: list[Any], refused: Any) -> None:
    """The media of `images` were given to the parts in the parts' order, whatever they said."""
    first, second = ({"type": "image"} | ({} if index is None else {"index": index}) for index in indices)
    turns = conversation([first, {"type": "text", "text": "q"}], "a", [{"type": "text", "text": "r"}, second], "a")
    value = {"messages": turns, "images": ["a.png", "c.png"]}
    if refused is None:
        assert parse_record(value, ReadSettings()).unknown == {}
    else:
        with pytest.raises(Skip, match=f"bad_message: a part for a medium has the index {refused!r}, and is number"):
            parse_record(value, ReadSettings())


def test_an_index_that_says_something_else_is_passed_over() -> None:
    image: dict[str, Any] = {"type": "image"}
    of_parts = [{"type": "text", "text": "q", "index": 0}, {**image, "index": 1}, {**image, "index": 2}]  # Anthropic's
    of_kind = [{**image, "index": 0}, {"type": "video", "index": 0}, {**image, "index": 1}]
    named = [{**image, "image": "a.png", "index": 7}]
    after_text = ["<image>a", "b", [{**image, "index": 1}]]
    for texts in ([of_parts], [of_kind], [named], after_text):
        assert parse_record({"messages": conversation(*texts, "a")}, ReadSettings()).unknown == {}


def test_a_placeholder_of_an_absent_kind_is_text() -> None:
    messages, order, put_in = place_media(conversation("write <image> and <video>", "ok"), [])
    assert (order, put_in) == ([], False)
    assert contents(split_content_at_placeholders(messages, [])) == ["write <image> and <video>", "ok"]
    messages, _, _ = place_media(conversation("<image> in a <video> tag", "ok"), ["image"])
    assert contents(split_content_at_placeholders(messages, ["image"]))[0] == [
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


def test_the_assistant_may_spell_a_placeholder_or_show_an_image() -> None:
    messages, order, _ = place_media(conversation("<image> which tag?", "Use <image> for it"), ["image"])
    assert order == [0]
    parts = split_content_at_placeholders(messages, ["image"])
    assert parts[0]["content"][0] == {"type": "image"}
    assert parts[1]["content"] == "Use <image> for it"
    messages, _, _ = place_media(conversation("draw", "<image>"), ["image"])
    assert split_content_at_placeholders(messages, ["image"])[1]["content"] == [{"type": "image"}]


@pytest.mark.parametrize(
    ("texts", "kinds"),
    [
        (("<image><image>", "x"), ["image"]),
        (("<image>", "x"), ["image", "image"]),
        (("<video>", "x"), ["video", "image"]),
        (("<image>", "<image>"), ["image", "image", "image"]),
        (("", "hi"), ["image"]),  # no user's turn: nowhere is a place for it
        # put in before it, images would be a guess, and `<video>` would be trained on as text
        (("<video>what?", "a"), ["image"]),
        (("<video>what?", "a"), ["image", "image"]),
    ],
)
def test_any_other_mismatch_is_a_skip(texts: tuple[str, ...], kinds: list[str]) -> None:
    messages = [turn for turn in conversation(*texts) if turn["content"]]
    with pytest.raises(Skip) as skip:
        place_media(messages, kinds)
    assert skip.value.reason is Reason.PLACEHOLDER_MISMATCH
    if texts[0] == "<video>what?":
        assert "1 video in the text" in str(skip.value)
    assert place_media(conversation("what?", "a <video>"), ["image"])[0][0]["content"] == "<image>what?"


def test_structured_content_is_stored_as_a_string_unless_it_spells_a_placeholder() -> None:
    named = [{"type": "image", "name": "0.jpg"}, {"type": "text", "text": "what?"}]
    assert place_media(conversation(named, "x"), ["image"])[0][0]["content"] == "<image>what?"
    parts = [{"type": "image"}, {"type": "text", "text": "what is <image>?"}]
    messages, order, _ = place_media(conversation(parts, "x"), ["image"])
    assert (messages[0]["content"], order) == (parts, [0])
    assert split_content_at_placeholders(messages, ["image"])[0]["content"] == parts


def test_skips_and_kinds() -> None:
    skip = pickle.loads(pickle.dumps(Skip(Reason.BAD_MESSAGE, "why")))  # between processes
    assert (skip.reason, skip.detail, str(skip)) == (Reason.BAD_MESSAGE, "why", "bad_message: why")
    types = [media_type(kinds) for kinds in ([], ["image"], ["video", "video"], ["image", "video"])]
    assert types == ["text", "image", "video", "mix"]


BOXES = {"ref": ["dog"], "bbox": [[1, 2, 3, 4]]}
UNSUPPORTED, BAD = "unsupported_media", "bad_message"


def reason(*texts: str, **fields: Any) -> str | None:
    """Why a conversation is skipped; None: it is packed."""
    try:
        parse_record(parse_sample_json(chat(*texts, **fields)), ReadSettings())
    except Skip as skip:
        return skip.reason.value
    return None


@pytest.mark.parametrize(
    ("texts", "fields", "expected"),
    [
        (("Where is <ref-object>?", "At <bbox>."), {"objects": BOXES}, BAD),
        (("Where?", "<ref-object><bbox>"), {"objects": BOXES}, BAD),
        (("Where?", "a dog"), {"objects": BOXES}, None),  # a field that no text speaks of
        (("What is <bbox> in ms-swift?", "A place for a box."), {}, None),
        (("What is <bbox> in ms-swift?", "A place for a box."), {"objects": {}}, None),
        (("How do I write <audio> in HTML?", "<audio controls>"), {}, None),
        (("Write HTML with <audio>", "<audio></audio>"), {"audio": True}, None),
        (("Where? As <bbox>…</bbox>", "<bbox>1,2,3,4</bbox>"), {"objects": BOXES}, None),  # the box is written
        (("Picture 1: <img>a.png</img>\nWhat is it?", "a dog"), {}, None),  # it becomes a medium
        (("<img>https://a.b/c.JPG?size=2</img>What?", "a dog"), {}, UNSUPPORTED),
        (("<image>\n<img>/data/my pictures/a.jpeg</img>", "a dog"), {"images": ["a.png"]}, UNSUPPORTED),
        (('Close <img src="x.png"> and <img src="y.png"/>', "done"), {}, None),
        (("Is <img>text</img> right? Or <img></img>?", "No."), {}, None),
        (("<img>\na.png\n</img>", "b"), {}, None),
        (("An XML of pictures, please", "<list><img>a.png</img></list>"), {}, None),  # what the model has to write
    ],
)
def test_what_stands_for_something_else_costs_the_sample(
    texts: tuple[str, str], fields: dict[str, Any], expected: str | None
) -> None:
    assert reason(*texts, **fields) == expected


def test_content_parts_are_looked_at_too() -> None:
    parts = [{"type": "image"}, {"type": "text", "text": "<img>a.png</img>"}]
    value = {"messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": "b"}]}
    with pytest.raises(Skip, match=UNSUPPORTED):
        parse_record(value, ReadSettings())


def test_each_has_its_line_and_the_others_are_packed(config: Callable[..., PackConfig], tmp_path: Path) -> None:
    """All four were packed: boxes as `<bbox>`, a picture as its path, a call as an empty turn."""
    calls = [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {}}}]
    called = parse_sample_json(chat("weather?", "", "x", "sunny"))
    called["messages"][1] |= {"content": None, "tool_calls": calls}
    called["messages"][2]["role"] = "tool"
    members = {
        "a.json": chat("<image>q", "a"),
        "a.jpg": picture(),
        "boxes.json": chat("<image>Where?", "<bbox>", objects=BOXES),
        "boxes.jpg": picture(),
        "calls.json": json.dumps(called).encode(),
        "picture.json": chat("<img>a.png</img>What?", "a dog"),
        "t.json": chat("q", "a"),
        "u.json": chat("q", ""),
    }
    silent = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    silent += "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    silent = silent.replace("{{ m.content }}", "{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for p in m.content %}{{ p.text if p.type == 'text' else '<|vision_start|><|image_pad|><|vision_end|>' }}"
        "{% endfor %}{% endif %}")  # fmt: skip
    run = config(write_tar(tmp_path / "s.tar", members), max_skipped=1.0, model__chat_template=silent)
    figures = pack(run)
    assert figures["samples_packed"] == 2
    ledger = json_lines(Path(run.output.dir) / "packed" / "skipped.jsonl")
    assert {line["sample_id"]: line["reason"] for line in ledger} == {
        "s.tar/boxes": BAD,
        "s.tar/calls": "template_drops",
        "s.tar/picture": "missing_media",
        "s.tar/u": "empty_answer",
    }
