"""Refuses texts with marks that other tools replace when they train. Here the marks would be trained as text.

ms-swift    "<ref-object> is at <bbox>", with names and boxes in the field `objects`; "<audio>", with files in `audios`
Qwen-VL     "Picture 1: <img>a.png</img>"
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from energon_pack.samples.dialects.pictures import TO_DOWNLOAD, pictures_in
from energon_pack.samples.sample import Message
from energon_pack.samples.skip import Reason, Skip

#: field → mark in the text for its values, unless an end tag follows (HTML, `<bbox>1,2,3,4</bbox>`); the message
_FIELDS = {
    "objects": (("<ref-object>", "<bbox>"), Reason.BAD_MESSAGE),
    "audios": (("<audio>",), Reason.UNSUPPORTED_MEDIA),
    "audio": (("<audio>",), Reason.UNSUPPORTED_MEDIA),
}


def refuse_unrendered(messages: Sequence[Message], fields: Mapping[str, Any]) -> None:
    """Refuse a sample with marks that nothing here would replace.

    Args:
        messages: as in `Record.messages`.
        fields: the sample's other fields.

    Raises:
        Skip: `bad_message`, `unsupported_media`.
    """
    for field, (marks, reason) in _FIELDS.items():
        if fields.get(field):
            whole = "".join(text for _, text in _texts(messages))
            found = next((mark for mark in marks if mark in whole and mark.replace("<", "</") not in whole), None)
            if found:
                remedy = " (source.boxes says as which text)" if field == "objects" else ""
                raise Skip(reason, f"{found} stands for a value of {field!r}, which is not put in its place{remedy}")
    for role, text in _texts(messages):
        if role == "assistant" or "<img>" not in text:
            continue
        for name in pictures_in(text):
            remedy = TO_DOWNLOAD if "://" in name else "the sample lists media too: write <image> where each stands"
            raise Skip(Reason.UNSUPPORTED_MEDIA, f"<img>{name}</img> in a text: {remedy}")


def _texts(messages: Sequence[Message]) -> Iterator[tuple[str, str]]:
    """Yield role and text of every text in the messages."""
    for message in messages:
        content = message["content"]
        if isinstance(content, str):
            yield message["role"], content
        else:
            yield from ((message["role"], part["text"]) for part in content if part["type"] == "text")
