"""Rewrites a record in our own words, before and after its conversation is found. Pure.

JSON ──in_our_words──► fields as `parse_record` knows them      messages ──with_marks_replaced──► messages
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from energon_pack.samples.dialects.pairs import asked_and_answered
from energon_pack.samples.dialects.table import TURN_FIELDS
from energon_pack.samples.documents import DOCUMENT
from energon_pack.samples.media.kinds import IMAGE, MEDIA_KEYS, kind_by_name
from energon_pack.samples.raw_json import parse_json
from energon_pack.samples.sample import MESSAGE_KEYS, Message
from energon_pack.samples.settings import ReadSettings, SampleType
from energon_pack.samples.skip import Reason, Skip

_FIELDS = ("messages", "prompt", "response", "system", "tools", "images", "videos", "audios", "id")
_ROLES = ("user", "assistant", "system", "tool")


#: fields without which a record is no such document
INTERLEAVED_KEYS = frozenset(("texts", "text_list"))
_BETWEEN_TEXTS = "\n\n"  # where no image stands between two texts
_BETWEEN_SENTENCES = " "


#: fields whose list may be written as JSON text, as a cell of a table has it
_LISTS = (*MESSAGE_KEYS, *TURN_FIELDS, *MEDIA_KEYS)


def in_our_words(value: Any, settings: ReadSettings) -> Any:
    """Parse lists that are JSON text, rename what the settings name, and write an interleaved document as a message."""
    if isinstance(value, dict):
        value = _with_lists(value, settings)
    if settings.renames:
        value = renamed(value, settings)
    if isinstance(value, dict) and kind_by_name(str(value.get("file_name"))) and value.keys().isdisjoint(MEDIA_KEYS):
        value = _of_image_folder(value)
    if isinstance(value, dict) and not INTERLEAVED_KEYS.isdisjoint(value):
        is_wanted = settings.sample_type in (SampleType.auto, SampleType.document) and not settings.messages_key
        return as_document(value) if is_wanted else value
    return value


def _with_lists(value: dict[str, Any], settings: ReadSettings) -> dict[str, Any]:
    columns = settings.columns
    named = (settings.messages_key, columns.messages, columns.images, columns.videos, columns.audios)
    texts = {key: value.get(key) for key in (*_LISTS, *named) if key is not None}
    lists = {key: _list_in(text) for key, text in texts.items() if isinstance(text, str) and text.lstrip()[:1] == "["}
    return value | {key: parsed for key, parsed in lists.items() if parsed is not None} if lists else value


def _list_in(text: str) -> list[Any] | None:
    """Return the list that a text is as JSON; None: it is another text."""
    try:
        parsed = parse_json(text)
    except Skip:
        return None
    return parsed if isinstance(parsed, list) else None


def _of_image_folder(value: dict[str, Any]) -> dict[str, Any]:
    """Rename the fields of ImageFolder's metadata.jsonl: `{file_name, text}`."""
    ours = {"file_name": "image", "text": "caption"}
    return {ours.get(name, name): item for name, item in value.items()}


def as_document(value: dict[str, Any]) -> dict[str, Any]:
    """Return a record with its interleaved document as its messages; the same record if it holds none."""
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


def renamed(value: Any, settings: ReadSettings) -> Any:
    """Return a record in which the fields that the settings name have our names."""
    if isinstance(value, list):
        value = {settings.messages_key or "messages": value}
    if not isinstance(value, dict):
        return value
    columns = {ours: theirs for ours in _FIELDS if (theirs := getattr(settings.columns, ours)) is not None}
    for ours in ("messages", "prompt", "response"):
        if ours in columns and columns[ours] not in value:
            what = f"source.columns.{ours}={columns[ours]} names no field of it; there are {sorted(value)[:8]}"
            raise Skip(Reason.NO_MESSAGES, what)
    rest = {key: item for key, item in value.items() if key not in columns.values()}
    value = rest | {ours: value[theirs] for ours, theirs in columns.items() if theirs in value}
    if {"prompt", "response"} <= columns.keys():
        sides = value.pop("prompt"), value.pop("response")
        if not all(sides):
            ours = "prompt" if sides[1] else "response"
            raise Skip(Reason.BAD_MESSAGE, f"source.columns.{ours}={columns[ours]}: the field is empty")
        return {**value, "messages": asked_and_answered(*sides)}
    fields = (settings.messages_key,) if settings.messages_key else (*MESSAGE_KEYS, *TURN_FIELDS)
    turns = {
        key: [_our_turn(each, settings) for each in value[key]] for key in fields if isinstance(value.get(key), list)
    }
    return value | turns


def our_turn(message: Any, role_key: str, content_key: str, roles: Mapping[Any, str]) -> Any:
    """Return a turn with our keys and role; what is no object stays unchanged.

    Args:
        roles: their role → ours.
    """
    if not isinstance(message, dict):
        return message
    rest = {key: item for key, item in message.items() if key not in (role_key, content_key)}
    spelled = message.get(role_key)
    role = roles.get(spelled, spelled) if isinstance(spelled, str) else spelled
    return {"role": role, "content": message.get(content_key), **rest}


def _our_turn(message: Any, settings: ReadSettings) -> Any:
    if not isinstance(message, dict):
        return message
    role_key = settings.columns.role or ("role" if "role" in message else "from")
    content_key = settings.columns.content or ("content" if "content" in message else "value")
    if role_key not in message:
        return message
    roles = {theirs: ours for ours in _ROLES if (theirs := getattr(settings.roles, ours)) is not None}
    turn: Message = our_turn(message, role_key, content_key, roles)
    return turn if content_key in message else {key: item for key, item in turn.items() if key != "content"}
