"""Renames a record's fields, and the keys and roles of its turns: `source.columns.*` and `source.roles.*`. Pure.

columns.messages=dialog columns.role=speaker columns.content=utterance roles.user=Alice roles.assistant=Bob

{"dialog": [{"speaker": "Alice", "utterance": "Hi"}]} ──renamed──► {"messages": [{"role": "user", "content": "Hi"}]}
"""

from collections.abc import Mapping
from typing import Any

from energon_pack.samples.dialects.pairs import asked_and_answered
from energon_pack.samples.dialects.table import TURN_FIELDS
from energon_pack.samples.sample import MESSAGE_KEYS, Message
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Reason, Skip

_FIELDS = ("messages", "prompt", "response", "system", "tools", "images", "videos", "audios", "id")
_ROLES = ("user", "assistant", "system", "tool")


def renamed(value: Any, settings: ReadSettings) -> Any:
    """Return a record in which the fields that the settings name have our names.

    Raises:
        Skip: `no_messages` if a field of the conversation is not there.
    """
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
