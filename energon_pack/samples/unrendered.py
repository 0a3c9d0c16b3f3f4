"""Replaces marks in texts that other tools replace when they train, or refuses them: they would be trained as text.

ms-swift    "<ref-object> is at <bbox>", with names and boxes in the field `objects`
Qwen-VL     "Picture 1: <img>a.png</img>"
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from energon_pack.samples.dialects.boxes import with_boxes
from energon_pack.samples.dialects.pictures import pictures_in, with_pictures
from energon_pack.samples.media.kinds import MEDIA_KEYS
from energon_pack.samples.sample import Message
from energon_pack.samples.settings import Boxes
from energon_pack.samples.skip import Reason, Skip

_MEDIA_KEYS = ("name", "media_files", *MEDIA_KEYS)
#: field → mark in the text for its values, unless an end tag follows (HTML, `<bbox>1,2,3,4</bbox>`); the message
_FIELDS = {
    "objects": (("<ref-object>", "<bbox>"), Reason.BAD_MESSAGE),
}


def with_marks_replaced(
    messages: list[Message], fields: Mapping[str, Any], boxes: Boxes | None = None, lists_media: bool = False
) -> list[Message]:
    """Put media in the place of `<img>a.png</img>`, and boxes in the place of `<bbox>`; refuse the other marks.

    Args:
        messages: as in `Record.messages`.
        fields: the sample's other fields.
        boxes: the text that stands for a box; None: `<bbox>` is refused, too.
        lists_media: the sample lists its media elsewhere than in `fields`.

    Raises:
        Skip: `bad_message`, `unsupported_media`.
    """
    if boxes and fields.get("objects"):
        messages = with_boxes(messages, fields["objects"], boxes)
    for field, (marks, reason) in _FIELDS.items():
        if fields.get(field):
            whole = "".join(text for _, text in _texts(messages))
            found = next((mark for mark in marks if mark in whole and mark.replace("<", "</") not in whole), None)
            if found:
                remedy = " (source.boxes names the text for boxes)" if field == "objects" else ""
                raise Skip(reason, f"{found} stands for a value of {field!r}, which is not put in its place{remedy}")
    for role, text in _texts(messages):
        if role != "assistant" and "<img>" in text and pictures_in(text):
            return with_pictures(messages, lists_media or any(map(fields.get, _MEDIA_KEYS)))
    return messages


def _texts(messages: Sequence[Message]) -> Iterator[tuple[str, str]]:
    """Yield role and text of every text in the messages."""
    for message in messages:
        content = message["content"]
        if isinstance(content, str):
            yield message["role"], content
        else:
            yield from ((message["role"], part["text"]) for part in content if part["type"] == "text")
