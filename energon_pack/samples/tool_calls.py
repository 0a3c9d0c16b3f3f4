"""Translates other tools' spellings of tool calls and results into OpenAI's: `tool_calls`, role `tool`. Pure.

ShareGPT, LLaMA-Factory  {"from": "function_call", "value": "{\"name\": …, \"arguments\": {…}}"}, "observation"
ms-swift                 {"role": "tool_call", "content": "{…}"}, one call in each turn; "tool_response"
Anthropic                content parts of type tool_use and tool_result; thinking
LLaMA-Factory v1         content parts of type tool_call and reasoning, with a value
OpenAI, of old           {"role": "assistant", "function_call": {…}}, and a list as `functions`
LangChain                {"name": …, "args": {…}, "id": …, "type": "tool_call"}, in `tool_calls` or as a content part

In each, arguments may stand under any of `ARGUMENT_KEYS`, in the call or in its `function`. If a text that is a call
has none of these, the call's own keys are its arguments: `{"name": "tide_at", "harbour": "Bergen"}`.
"""

import json
from collections.abc import Mapping
from typing import Any

from energon_pack.samples.keys import (
    is_harmless_tool_call_key,
    is_unknown_tool_call_key,
    unread_items_of_tool_call,
    without_synonyms,
)
from energon_pack.samples.raw_record import parse_json_or_skip
from energon_pack.samples.sample import ARGUMENT_KEYS, REASONING_KEYS, Message
from energon_pack.samples.skip import Reason, Skip, value_of_synonyms
from energon_pack.samples.turns import (
    VALUE_KEYS,
    has_argument_key,
    is_tool_call_part,
    objects_with_call_keys,
    parse_json_or_none,
    part_weights_with_calls_as_text,
    split_text_and_tool_calls,
)
from energon_pack.samples.weights import TURN_WEIGHT_KEYS

#: types of content parts that are no text: calls, their results, thoughts
TOOL_PART_TYPES = ("tool_use", "tool_call", "tool_result", "thinking", "reasoning")
#: types of calls; any other `type` in a text that is a call is an argument
_CALL_TYPES = (None, "function", "function_call", "tool_call", "tool_use")
_SCHEMA_KEYS = ("function", "parameters", "input_schema", "properties")


def with_calls_from_content(turn: Message, index: int) -> Message:
    """Turn a message whose content is tool calls into an assistant's turn with `tool_calls`.

    The content is the JSON of one call or of a list, perhaps after a thought; or a text with `<tool_call>` tags.
    """
    if turn.get("tool_calls"):
        raise Skip(Reason.BAD_MESSAGE, f"message {index} has calls both in its content and beside it")
    text, calls = _text_and_calls(turn["content"], index)
    return {**turn, "role": "assistant", "content": text, "tool_calls": calls}


def with_tool_calls_as_list(turn: Message, turn_index: int) -> Message:
    """Return an assistant's turn with its calls as a list, which may be OpenAI's old `function_call` or JSON text."""
    calls = turn.get("tool_calls")
    if calls and turn.get("function_call") is not None:
        raise Skip(Reason.BAD_MESSAGE, f"message {turn_index} has calls both in tool_calls and in function_call")
    spelled = calls
    if isinstance(calls, str) and calls.strip():
        calls = parse_json_or_none(calls)
    elif not calls:
        if turn.get("function_call") is None:
            return turn
        calls = [_openai_call(turn["function_call"], turn_index)]
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        detail = f"message {turn_index} has tool_calls that are no list of calls: {str(spelled)[:80]}"
        raise Skip(Reason.BAD_MESSAGE, detail)
    calls = [_with_arguments(call, turn_index) for call in calls]
    return {**{key: item for key, item in turn.items() if key != "function_call"}, "tool_calls": calls}


def split_turn_by_content_parts(turn: Message, turn_index: int) -> list[Message]:
    """Split a turn whose content parts hold tool calls, thoughts or results of tools.

    Calls and thoughts become keys of the turn; each result becomes a turn of role `tool` before the turn's other parts.
    """
    calls: list[Message] = []
    results: list[Message] = []
    rest: list[Any] = []
    thoughts: list[Any] = []
    for part in turn["content"]:
        kind = part.get("type") if isinstance(part, dict) else None
        if is_tool_call_part(part):
            calls.append(_openai_call(part, turn_index))
        elif kind == "tool_call":
            calls += _text_and_calls(value_of_synonyms(part, VALUE_KEYS, "content[]."), turn_index)[1]
        elif kind == "tool_result":
            content = part.get("content")
            named = {"tool_call_id": part["tool_use_id"]} if isinstance(part.get("tool_use_id"), str) else {}
            weights = {key: turn[key] for key in TURN_WEIGHT_KEYS.intersection(turn)}
            results.append({"role": "tool", "content": "" if content is None else content, **named, **weights})
        elif kind in TOOL_PART_TYPES:
            thoughts.append(value_of_synonyms(part, ("thinking", "value"), "content[]."))
        elif calls:
            raise Skip(Reason.BAD_MESSAGE, f"message {turn_index} goes on after a tool call: {str(part)[:80]}")
        else:
            rest.append(part)
    if not all(isinstance(thought, str) for thought in thoughts):
        raise Skip(Reason.BAD_MESSAGE, f"message {turn_index} has a thought that is no text")
    if (calls or thoughts) and (turn["role"] != "assistant" or results):
        raise Skip(
            Reason.BAD_MESSAGE, f"message {turn_index} has calls or thoughts in a turn of the role {turn['role']!r}"
        )
    if (calls and turn.get("tool_calls")) or (thoughts and any(map(turn.get, REASONING_KEYS))):
        raise Skip(Reason.BAD_MESSAGE, f"message {turn_index} has calls or thoughts both in its content and beside it")
    if calls or thoughts:
        reasoning = {"reasoning_content": "\n".join(thoughts)} if thoughts else {}
        turn = {**turn, "content": rest or "", **reasoning, **({"tool_calls": calls} if calls else {})}
        return [without_synonyms(turn, 1)]
    return [*results, *([{**turn, "content": rest}] if rest else [])]


def with_calls_as_text(message: Message, index: int) -> Message:
    """Return a turn without `tool_calls`: the JSON of each call stands at the end of the text, on its own line."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    if not isinstance(calls, list):  # the turn is no answer
        raise Skip(Reason.BAD_MESSAGE, f"message {index} has tool_calls that are no list of calls: {str(calls)[:80]}")
    functions = (_openai_call(call, index)["function"] for call in calls)
    content = message["content"]
    texts = [json.dumps(_name_and_arguments(function), ensure_ascii=False) for function in functions]
    texts = [
        f"\n{text}" if number or (content and isinstance(content, str)) else text for number, text in enumerate(texts)
    ]
    written = "".join(texts)
    content = content + written if isinstance(content, str) else [*content, {"type": "text", "text": written}]
    rest = {key: item for key, item in message.items() if key != "tool_calls"}
    return {**rest, "content": content, **part_weights_with_calls_as_text(message, texts)}


def tool_schemas_of(value: Any) -> list[Any] | None:
    """Read tool schemas from a list or its JSON text; a function alone gets OpenAI's wrapper. None: no tools."""
    if isinstance(value, str) and value.strip():
        try:
            value = parse_json_or_skip(value)
        except Skip as skip:
            raise Skip(Reason.BAD_MESSAGE, f"tools are not JSON: {skip.detail}") from None
    if not value:
        return None
    if not isinstance(value, list):
        raise Skip(Reason.BAD_MESSAGE, f"tools are a {type(value).__name__}, not a list")
    return [_tool_schema(item) for item in value]


def _tool_schema(item: Any) -> Any:
    item = _parsed_schema(item)
    if not isinstance(item, dict) or "function" in item or "type" in item or not isinstance(item.get("name"), str):
        return item
    value_of_synonyms(item, ("parameters", "input_schema"))
    function = {("parameters" if key == "input_schema" else key): field for key, field in item.items()}
    return {"type": "function", "function": function}


def _parsed_schema(value: Any) -> Any:
    """Return a schema in which no schema is the JSON text of an object; other texts stay."""
    if isinstance(value, str) and isinstance(schema := parse_json_or_none(value), dict):
        value = schema
    if not isinstance(value, dict):
        return value
    parsed = {key: _parsed_schema(value[key]) for key in _SCHEMA_KEYS if isinstance(value.get(key), (dict, str))}
    return {**value, **parsed} if parsed else value


def _text_and_calls(value: Any, index: int) -> tuple[str, list[Message]]:
    """Split the content of a turn of tool calls into its text and its calls."""
    text, calls = split_text_and_tool_calls(value)
    if not calls or None in calls:
        raise Skip(Reason.BAD_MESSAGE, f"message {index} is no JSON of a tool call: {str(value)[:80]}")
    return text, [_openai_call(call, index, is_text=True) for call in calls]


def _openai_call(value: Any, index: int, is_text: bool = False) -> Message:
    """Return a call in OpenAI's form; its arguments stay unchanged, also JSON in a string."""
    name, arguments = _name_and_arguments_of(value, index, is_text)
    named = {"id": value["id"]} if isinstance(value.get("id"), str) else {}
    return {**named, "type": "function", "function": {"name": name, "arguments": arguments}}


def _with_arguments(call: Message, index: int) -> Message:
    """Return an OpenAI call with its arguments where templates read them; raises Skip as `_openai_call` does."""
    _, arguments = _name_and_arguments_of(call, index)
    function = call.get("function", call)
    if "arguments" in function and function["arguments"] == arguments:
        return call
    if "function" not in call:
        return _openai_call(call, index)
    changed = {key: item for key, item in function.items() if key not in ARGUMENT_KEYS[1:]} | {"arguments": arguments}
    return {**{key: item for key, item in call.items() if key not in ARGUMENT_KEYS}, "function": changed}


def _name_and_arguments_of(call: Any, index: int, is_text: bool = False) -> tuple[str, Any]:
    """Return the name and the arguments of a call as it is written; raises Skip if it has no name or hides arguments.

    Args:
        is_text: the call is the text of a turn or a part, whose own keys may be its arguments.
    """
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        raise Skip(Reason.BAD_MESSAGE, f"message {index} is no JSON of a tool call with a name: {str(call)[:80]}")
    spelled = {
        f"{'function.' if holder is not call else ''}{key}": holder[key]
        for holder in reversed(objects_with_call_keys(call))
        for key in ARGUMENT_KEYS
        if key in holder
    }
    objects = {key: _object_of(item) for key, item in spelled.items()}
    value_of_synonyms(objects, [*objects], "calls[].")
    if any(objects.values()):
        return function["name"], _arguments(next(spelled[key] for key in spelled if objects[key]), index)
    if is_text and not has_argument_key(call):
        return function["name"], _arguments_from_own_keys(call, function["name"], index)
    unread = [
        key
        for key, item in unread_items_of_tool_call(call).items()
        if is_unknown_tool_call_key(key) and _has_object(item)
    ]
    if unread:
        raise _hidden_arguments_skip(function["name"], unread, index)
    return function["name"], _arguments(next(iter(spelled.values()), None), index)


def _arguments_from_own_keys(call: Message, name: str, index: int) -> Message:
    """Return the arguments of a call whose own keys they are; raises Skip if some keys have another meaning."""
    arguments = unread_items_of_tool_call(call)
    if call.get("type") not in _CALL_TYPES:
        arguments["type"] = call["type"]
    unknown = [key for key in arguments if key == "type" or is_unknown_tool_call_key(key)]
    if len(unknown) == len(arguments):
        return arguments
    if unknown or not all(map(is_harmless_tool_call_key, arguments)):
        raise _hidden_arguments_skip(name, [*arguments], index)
    return {}


def _hidden_arguments_skip(name: str, keys: list[str], index: int) -> Skip:
    spellings = ", ".join(ARGUMENT_KEYS)
    return Skip(
        Reason.BAD_MESSAGE,
        f"message {index} calls {name[:40]} with the keys {keys[:8]}: arguments stand under {spellings} (source.map can"
        " rename a key)",
    )


def _object_of(value: Any) -> Any:
    """Return a value, or the object of which it is the JSON text."""
    parsed = parse_json_or_none(value) if isinstance(value, str) else None
    return parsed if isinstance(parsed, dict) else value


def _has_object(value: Any) -> bool:
    """Tell whether a value is an object that is not empty, its JSON text, or a list with one."""
    value = _object_of(value)
    return any(isinstance(item, dict) and bool(item) for item in (value if isinstance(value, list) else [value]))


def _arguments(value: Any, index: int) -> Any:
    """Return the arguments of a call: an object, or the JSON of an object in a string."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return {}
    if not isinstance(_object_of(value), dict):
        detail = f"message {index} calls a tool with arguments that are no object: {str(value)[:80]}"
        raise Skip(Reason.BAD_MESSAGE, detail)
    return value


def _name_and_arguments(function: Mapping[str, Any]) -> dict[str, Any]:
    """Return name and arguments of a call; arguments in a JSON string become an object."""
    return {"name": function.get("name"), "arguments": _object_of(function.get("arguments", {}))}
