"""Placeholders that other tools replace in training: a text that still has one is no training text."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from energon_pack.config import PackConfig
from energon_pack.pack import pack
from energon_pack.samples.raw_json import load_json
from energon_pack.samples.record import parse_record
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Skip
from support.packed import json_lines
from support.samples import chat, picture, write_tar

BOXES = {"ref": ["dog"], "bbox": [[1, 2, 3, 4]]}
UNSUPPORTED, BAD = "unsupported_media", "bad_message"


def reason(*texts: str, **fields: Any) -> str | None:
    """Why a conversation is skipped; None: it is packed."""
    try:
        parse_record(load_json(chat(*texts, **fields)), ReadSettings())
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
    called = load_json(chat("weather?", "", "x", "sunny"))
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
    assert figures["samples_packed"] == 3
    ledger = json_lines(Path(run.output.dir) / "packed" / "skipped.jsonl")
    assert {line["sample_id"]: line["reason"] for line in ledger} == {
        "s.tar/boxes": BAD,
        "s.tar/calls": "processor_error",
        "s.tar/picture": "missing_media",
    }
