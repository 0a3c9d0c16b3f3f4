"""Finds the tool calls of a turn as they are written: in keys, content parts and texts. Pure; `tool_calls` reads them.

{"from": "function_call", "value": "{\\"name\\": \\"tide_at\\", \\"args\\": {}}"}  ──►  {"name": "tide_at", "args": {}}
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from energon_pack.samples.raw_json import parse_json_or_skip
from energon_pack.samples.sample import ARGUMENT_KEYS, CONTENT_KEYS, ROLE_KEYS, Message
from energon_pack.samples.skip import Skip, key_of_synonyms

#: roles of turns that are calls
CALL_ROLES = frozenset(("function_call", "tool_call"))
#: keys of a content part of type tool_call that holds the text of a call
VALUE_KEYS = ("value", "tool_call")
_THOUGHT_PATTERN = re.compile(r"\s*<think>.*?</think>", re.DOTALL)
_TAGGED_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


def written_calls(turn: Mapping[str, Any]) -> Iterator[tuple[Message, bool]]:
    """Yield each call of a turn that is an object, and whether it is the text of a turn or of a part."""
    content = turn.get(key_of_synonyms(turn, CONTENT_KEYS))
    is_call_turn = turn.get(key_of_synonyms(turn, ROLE_KEYS)) in CALL_ROLES
    if len(turn) < 3 and not is_call_turn and not isinstance(content, list):
        return
    calls = turn.get("tool_calls")
    beside = [turn.get("function_call"), *_as_list(json_or_none(calls) if isinstance(calls, str) else calls)]
    in_text = text_and_calls(content)[1] if is_call_turn else []
    for part in content if isinstance(content, list) and not is_call_turn else ():
        if is_call(part):
            beside.append(part)
        elif isinstance(part, dict) and part.get("type") == "tool_call":
            in_text += text_and_calls(part.get("value") or part.get("tool_call"))[1]
    yield from ((call, False) for call in beside if isinstance(call, dict))
    yield from ((call, True) for call in in_text if isinstance(call, dict))


def is_call(part: Any) -> bool:
    """Tell whether a content part is a call itself: Anthropic's, or LangChain's, which has no value."""
    kind = part.get("type") if isinstance(part, dict) else None
    return bool(kind == "tool_use" or (kind == "tool_call" and part.keys().isdisjoint(VALUE_KEYS)))


def text_and_calls(value: Any) -> tuple[str, list[Any]]:
    """Split the content of a turn of tool calls into its text and its calls; None: a call that is no JSON.

    The content is the JSON of one call or of a list, perhaps after a thought; or a text with `<tool_call>` tags.
    """
    text, calls = "", value
    if isinstance(value, str):
        calls = json_or_none(value)
        if calls is None and (bodies := _TAGGED_CALL.findall(value)):
            parsed = (_as_list(json_or_none(body)) for body in bodies)
            text, calls = _TAGGED_CALL.sub("", value).strip(), [call for several in parsed for call in several]
        elif calls is None and (thought := _THOUGHT_PATTERN.match(value)):
            text, calls = thought[0].strip(), json_or_none(value[thought.end() :])
    return text, _as_list(calls)


def holders_of_keys(call: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the objects that hold a call's keys: the call, and its `function` if that is an object."""
    function = call.get("function")
    return [call, function] if isinstance(function, dict) else [call]


def has_argument_key(call: Mapping[str, Any]) -> bool:
    """Tell whether a call has one of the keys that hold arguments."""
    return any(not holder.keys().isdisjoint(ARGUMENT_KEYS) for holder in holders_of_keys(call))


def json_or_none(text: str) -> Any:
    """Parse JSON; None: the text is no JSON."""
    try:
        return parse_json_or_skip(text)
    except Skip:
        return None


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
