"""Reads documents in which texts and images take turns. Pure.

    {"texts": ["A cat.", null], "images": [null, "a.jpg"]}                                      OBELICS, MINT-1T
    {"text_list": ["A cat.", "A dog."], "image_info": [{"image_name": "a.jpg", "matched_text_index": 1}]}     MMC4

Each becomes one message of the role `document`, with its media where they stand: it is trained whole.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from energon_pack.samples.documents import DOCUMENT
from energon_pack.samples.media.kinds import IMAGE
from energon_pack.samples.sample import Message
from energon_pack.samples.skip import Reason, Skip

#: fields without which a record is no such document
INTERLEAVED_KEYS = frozenset(("texts", "text_list"))
_BETWEEN_TEXTS = "\n\n"  # where no image stands between two texts
_BETWEEN_SENTENCES = " "


def as_document(value: dict[str, Any]) -> dict[str, Any]:
    """Return a record with its interleaved document as its messages; the same record if it holds none.

    Raises:
        Skip: `bad_message`.
    """
    if _are_texts(value.get("texts")) and isinstance(value.get("images"), list):
        used, parts = ("texts", "images"), _obelics(value["texts"], value["images"])
    elif _are_texts(value.get("text_list")) and isinstance(value.get("image_info"), list):
        used, parts = ("text_list", "image_info"), _mmc4(value["text_list"], value["image_info"])
    else:
        return value
    if value.get("messages"):
        raise Skip(Reason.BAD_MESSAGE, f"it has messages and a document in {used[0]}: source.messages_key decides")
    if not any(part["type"] == "text" for part in parts):
        raise Skip(Reason.NO_MESSAGES, f"the document in {used[0]} has no text")
    return {
        "messages": [{"role": DOCUMENT, "content": parts}],
        **{key: item for key, item in value.items() if key not in (*used, "messages")},
    }


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(text is None or isinstance(text, str) for text in value)


def _obelics(texts: list[str | None], images: list[Any]) -> list[Message]:
    if len(images) != len(texts):
        what = f"texts and images are no document: {len(texts)} places for texts, {len(images)} for images"
        raise Skip(Reason.BAD_MESSAGE, what)
    parts: list[Message] = []
    for index, (text, image) in enumerate(zip(texts, images, strict=True)):
        if text and image:
            raise Skip(Reason.BAD_MESSAGE, f"texts and images of a document both have something at place {index}")
        if image:
            parts.append(_image(image))
        elif text:
            _add_text(parts, text, _BETWEEN_TEXTS)
    return parts


def _mmc4(texts: list[str | None], infos: list[Any]) -> list[Message]:
    before: dict[int, list[Message]] = defaultdict(list)  # images, by the sentence that they stand before
    for info in infos:
        place = info.get("matched_text_index") if isinstance(info, Mapping) else None
        name = (
            next((info[key] for key in ("image_name", "raw_url") if info.get(key)), None) if place is not None else None
        )
        if type(place) is not int or not 0 <= place < len(texts) or not isinstance(name, str):
            raise Skip(Reason.BAD_MESSAGE, f"image_info has an image without a name or a place: {str(info)[:80]}")
        before[place].append(_image(name))
    parts: list[Message] = []
    for place, text in enumerate(texts):
        parts += before[place]
        if text:
            _add_text(parts, text if place == len(texts) - 1 else f"{text}{_BETWEEN_SENTENCES}", "")
    return parts


def _add_text(parts: list[Message], text: str, between: str) -> None:
    """Add a text to a document: a template may strip each part, so texts that meet are one part."""
    if parts and parts[-1]["type"] == "text":
        parts[-1]["text"] += between + text
    else:
        parts.append({"type": "text", "text": text})


def _image(named: Any) -> Message:
    return {"type": IMAGE.kind, IMAGE.kind: named}
