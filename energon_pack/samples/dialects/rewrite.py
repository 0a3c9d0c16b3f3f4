"""Rewrites a record in the terms of this package, before and after its conversation is found. Pure.

JSON ──rewrite_record──► fields as `parse_record` knows them      messages ──replace_img_tags──► messages
"""

from collections.abc import Mapping
from typing import Any

from energon_pack.samples.dialects.pairs import question_and_answer_turns
from energon_pack.samples.dialects.table import TURN_FIELDS
from energon_pack.samples.keys import without_synonyms
from energon_pack.samples.media.kinds import MEDIA_KEYS, kind_by_name
from energon_pack.samples.raw_json import RECORD_WEIGHT_KEYS, parse_json
from energon_pack.samples.sample import MESSAGE_KEYS, Message
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Reason, Skip, value_of_synonyms

_RENAMED_FIELDS = ("messages", "prompt", "response", "system", "tools", "images", "videos", "audios", "id")
_RENAMED_ROLES = ("user", "assistant", "system", "tool")
#: fields whose list may be written as JSON text, as a cell of a table has it
_LIST_FIELDS = frozenset((*MESSAGE_KEYS, *TURN_FIELDS, *MEDIA_KEYS))


def rewrite_record(value: Any, settings: ReadSettings) -> Any:
    """Rewrite a sample's JSON with the field names of this package.

    Lists that are JSON text are parsed, fields and roles that the settings name are renamed, and of keys with the same
    meaning one is kept.
    """
    if isinstance(value, dict):
        value = _with_parsed_lists(value, settings)
    if settings.has_renames:
        value = rename_fields_and_roles(value, settings)
    value = without_synonyms(value) if isinstance(value, dict) else value
    is_named = isinstance(value, dict) and "file_name" in value and value.keys().isdisjoint(MEDIA_KEYS)
    return _from_image_folder(value) if is_named and kind_by_name(str(value["file_name"])) else value


def _with_parsed_lists(value: dict[str, Any], settings: ReadSettings) -> dict[str, Any]:
    columns = settings.columns
    named = (settings.messages_key, columns.messages, columns.images, columns.videos, columns.audios)
    texts = {
        key: text for key, text in value.items() if isinstance(text, str) and (key in _LIST_FIELDS or key in named)
    }
    lists = {key: _parsed_list(text) for key, text in texts.items() if text.lstrip()[:1] == "["}
    return value | {key: parsed for key, parsed in lists.items() if parsed is not None} if lists else value


def _parsed_list(text: str) -> list[Any] | None:
    """Parse a text that is the JSON of a list; None: it is another text."""
    try:
        parsed = parse_json(text, RECORD_WEIGHT_KEYS)
    except Skip:
        return None
    return parsed if isinstance(parsed, list) else None


def _from_image_folder(value: dict[str, Any]) -> dict[str, Any]:
    """Rename the fields of ImageFolder's metadata.jsonl: `{file_name, text}`."""
    value_of_synonyms(value, ("text", "caption"))
    ours = {"file_name": "image", "text": "caption"}
    return {ours.get(name, name): item for name, item in value.items()}


def rename_fields_and_roles(value: Any, settings: ReadSettings) -> Any:
    """Rename the fields and roles that `source.columns` and `source.roles` name to those of this package."""
    if isinstance(value, list):
        value = {settings.messages_key or "messages": value}
    if not isinstance(value, dict):
        return value
    columns = {ours: name for ours in _RENAMED_FIELDS if (name := getattr(settings.columns, ours)) is not None}
    for ours in ("messages", "prompt", "response"):
        if ours in columns and columns[ours] not in value:
            detail = f"source.columns.{ours}={columns[ours]} names no field of it; there are {sorted(value)[:8]}"
            raise Skip(Reason.NO_MESSAGES, detail)
    rest = {key: item for key, item in value.items() if key not in columns.values()}
    value = rest | {ours: value[name] for ours, name in columns.items() if name in value}
    if {"prompt", "response"} <= columns.keys():
        sides = value.pop("prompt"), value.pop("response")
        if not all(sides):
            ours = "prompt" if sides[1] else "response"
            raise Skip(Reason.BAD_MESSAGE, f"source.columns.{ours}={columns[ours]}: the field is empty")
        return {**value, "messages": question_and_answer_turns(*sides)}
    fields = (settings.messages_key,) if settings.messages_key else (*MESSAGE_KEYS, *TURN_FIELDS)
    turns = {
        key: [_turn_by_settings(each, settings) for each in value[key]]
        for key in fields
        if isinstance(value.get(key), list)
    }
    return value | turns


def turn_with_our_keys(message: Any, role_key: str, content_key: str, roles: Mapping[Any, str]) -> Any:
    """Return a turn with the keys `role` and `content`, its role renamed by `roles`; other values stay unchanged."""
    if not isinstance(message, dict):
        return message
    rest = {key: item for key, item in message.items() if key not in (role_key, content_key)}
    spelled = message.get(role_key)
    role = roles.get(spelled, spelled) if isinstance(spelled, str) else spelled
    return {"role": role, "content": message.get(content_key), **rest}


def _turn_by_settings(message: Any, settings: ReadSettings) -> Any:
    if not isinstance(message, dict):
        return message
    role_key = settings.columns.role or ("role" if "role" in message else "from")
    content_key = settings.columns.content or ("content" if "content" in message else "value")
    if role_key not in message:
        return message
    roles = {name: ours for ours in _RENAMED_ROLES if (name := getattr(settings.roles, ours)) is not None}
    turn: Message = turn_with_our_keys(message, role_key, content_key, roles)
    return turn if content_key in message else {key: item for key, item in turn.items() if key != "content"}
