"""Writes the boxes and names of ms-swift's field `objects` in the place of `<bbox>` and `<ref-object>`. Pure.

    "Find <ref-object>" "<bbox>"  {"ref": ["a dog"], "bbox": [[0.1, 0.2, 0.5, 0.6]], "bbox_type": "norm1"}

    qwen      "Find <|object_ref_start|>a dog<|object_ref_end|>" "<|box_start|>(100,200),(500,600)<|box_end|>"
    internvl  "Find <ref>a dog</ref>" "<box>[[100, 200, 500, 600]]</box>"

The texts are those of ms-swift 4.6 for Qwen2-VL and Qwen3-VL, and for InternVL: thousandths of the image. Boxes in
pixels need the image's size, which a record does not tell.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from energon_pack.samples.sample import Message
from energon_pack.samples.settings import Boxes
from energon_pack.samples.skip import Reason, Skip

_MARK = re.compile("<ref-object>|<bbox>")
_WHOLE = 1000
_Box = list[int]


def _qwen(box: _Box) -> str:
    points = ",".join(f"({x},{y})" for x, y in zip(box[::2], box[1::2], strict=True))
    return f"<|box_start|>{points}<|box_end|>"


_WRITES: Mapping[Boxes, tuple[Callable[[str], str], Callable[[_Box], str]]] = {
    Boxes.qwen: (lambda ref: f"<|object_ref_start|>{ref}<|object_ref_end|>", _qwen),
    Boxes.internvl: (lambda ref: f"<ref>{ref}</ref>", lambda box: f"<box>[{box}]</box>"),
}


def with_boxes(messages: Sequence[Message], objects: Any, form: Boxes) -> list[Message]:
    """Return messages with boxes and names in the place of their marks; without marks, the same messages.

    Raises:
        Skip: `bad_message` for boxes in pixels, for values of another form, and unless each mark has its value.
    """
    marks = [mark for text in _texts(messages) for mark in _MARK.findall(text)]
    if not marks:
        return list(messages)
    refs, boxes = _values(objects)
    wanted = marks.count("<ref-object>"), marks.count("<bbox>")
    if wanted != (len(refs), len(boxes)):
        what = f"{wanted[0]} <ref-object> and {wanted[1]} <bbox> for {len(refs)} ref and {len(boxes)} bbox in objects"
        raise Skip(Reason.BAD_MESSAGE, what)
    write_ref, write_box = _WRITES[form]
    waiting = {"<ref-object>": iter(map(write_ref, refs)), "<bbox>": iter(map(write_box, boxes))}

    def written(text: str) -> str:
        return _MARK.sub(lambda mark: next(waiting[mark[0]]), text)

    def content(value: Any) -> Any:
        if isinstance(value, str):
            return written(value)
        return [{**part, "text": written(part["text"])} if part["type"] == "text" else part for part in value]

    return [{**message, "content": content(message["content"])} for message in messages]


def _values(objects: Any) -> tuple[list[str], list[_Box]]:
    refs, boxes, kind = (
        (objects.get(key) for key in ("ref", "bbox", "bbox_type")) if isinstance(objects, Mapping) else [None] * 3
    )
    refs, boxes = refs or [], boxes or []
    if not isinstance(refs, list) or not all(isinstance(ref, str) for ref in refs) or not isinstance(boxes, list):
        raise Skip(Reason.BAD_MESSAGE, f"objects are no ref and bbox: {str(objects)[:80]}")
    if boxes and kind != "norm1":
        what = "boxes in pixels need the image's size: write x/width and y/height, and bbox_type norm1"
        raise Skip(Reason.BAD_MESSAGE, f"objects have the bbox_type {kind or 'real'!r}: {what}")
    return refs, [_box(box) for box in boxes]


def _box(box: Any) -> _Box:
    is_box = isinstance(box, list) and len(box) in (2, 4)
    if not is_box or not all(type(x) in (int, float) and 0 <= x <= 1 for x in box):
        raise Skip(Reason.BAD_MESSAGE, f"objects have a bbox that is no 2 or 4 numbers from 0 to 1: {str(box)[:80]}")
    if len(box) == 4:
        box = [min(box[0], box[2]), min(box[1], box[3]), max(box[0], box[2]), max(box[1], box[3])]
    return [round(x * _WHOLE) for x in box]


def _texts(messages: Sequence[Message]) -> Iterator[str]:
    for message in messages:
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        yield from (part["text"] for part in parts if part["type"] == "text")
