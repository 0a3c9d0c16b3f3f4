"""Translates other tools' spellings of tool calls and results into OpenAI's: `tool_calls`, role `tool`. Pure.

ShareGPT, LLaMA-Factory  {"from": "function_call", "value": "{\"name\": …, \"arguments\": {…}}"}, "observation"
ms-swift                 {"role": "tool_call", "content": "{…}"}, one call in each turn; "tool_response"
Anthropic                content parts of type tool_use and tool_result; thinking
LLaMA-Factory v1         content parts of type tool_call and reasoning, with a value
OpenAI, of old           {"role": "assistant", "function_call": {…}}, and a list as `functions`
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from energon_pack.samples.raw_json import parse_json
from energon_pack.samples.sample import REASONING_KEYS, Message
from energon_pack.samples.skip import Reason, Skip, value_of_synonyms
from energon_pack.samples.weights import TURN_WEIGHT_KEYS

#: roles of turns that are calls
CALL_ROLES = frozenset(("function_call", "tool_call"))
#: types of content parts that are no text: calls, their results, thoughts
TOOL_PART_TYPES = ("tool_use", "tool_call", "tool_result", "thinking", "reasoning")
_THOUGHT_PATTERN = re.compile(r"\s*<think>.*?</think>", re.DOTALL)
_TAGGED_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


def call_turn(turn: Message, index: int) -> Message:
    """Turn a message whose content is tool calls into an assistant's turn with `tool_calls`.

    The content is the JSON of one call or of a list, perhaps after a thought; or a text with `<tool_call>` tags.
    """
    if turn.get("tool_calls"):
        raise Skip(Reason.BAD_MESSAGE, f"message {index} has calls both in its content and beside it")
    text, calls = _text_and_calls(turn["content"], index)
    return {**turn, "role": "assistant", "content": text, "tool_calls": calls}


def with_tool_calls(turn: Message, index: int) -> Message:
    """Return an assistant's turn with its calls as a list, which may be OpenAI's old `function_call` or JSON text."""
    calls = turn.get("tool_calls")
    if calls and turn.get("function_call") is not None:
        raise Skip(Reason.BAD_MESSAGE, f"message {index} has calls both in tool_calls and in function_call")
    spelled = calls
    if isinstance(calls, str) and calls.strip():
        calls = _parsed_json(calls)
    elif not calls:
        if turn.get("function_call") is None:
            return turn
        calls = [_openai_call(turn["function_call"], index)]
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        detail = f"message {index} has tool_calls that are no list of calls: {str(spelled)[:80]}"
        raise Skip(Reason.BAD_MESSAGE, detail)
    calls = [_with_arguments(call, index) for call in calls]
    return {**{key: item for key, item in turn.items() if key != "function_call"}, "tool_calls": calls}


def turns_of_parts(turn: Message, index: int) -> list[Message]:
    """Split a turn whose content parts hold tool calls, thoughts or results of tools.

    Calls and thoughts become keys of the turn; each result becomes a turn of role `tool` before the turn's other parts.
    """
    calls: list[Message] = []
    results: list[Message] = []
    rest: list[Any] = []
    thoughts: list[Any] = []
    for part in turn["content"]:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "tool_use":
            calls.append(
                _openai_call({"id": part.get("id"), "name": part.get("name"), "arguments": part.get("input")}, index)
            )
        elif kind == "tool_call":
            calls += _text_and_calls(value_of_synonyms(part, ("value", "tool_call"), "content[]."), index)[1]
        elif kind == "tool_result":
            content = part.get("content")
            named = {"tool_call_id": part["tool_use_id"]} if isinstance(part.get("tool_use_id"), str) else {}
            weights = {key: turn[key] for key in TURN_WEIGHT_KEYS.intersection(turn)}
            results.append({"role": "tool", "content": "" if content is None else content, **named, **weights})
        elif kind in TOOL_PART_TYPES:
            thoughts.append(value_of_synonyms(part, ("thinking", "value"), "content[]."))
        elif calls:
            raise Skip(Reason.BAD_MESSAGE, f"message {index} goes on after a tool call: {str(part)[:80]}")
        else:
            rest.append(part)
    if not all(isinstance(thought, str) for thought in thoughts):
        raise Skip(Reason.BAD_MESSAGE, f"message {index} has a thought that is no text")
    if (calls or thoughts) and (turn["role"] != "assistant" or results):
        raise Skip(Reason.BAD_MESSAGE, f"message {index} has calls or thoughts in a turn of the role {turn['role']!r}")
    if (calls and turn.get("tool_calls")) or (thoughts and any(map(turn.get, REASONING_KEYS))):
        raise Skip(Reason.BAD_MESSAGE, f"message {index} has calls or thoughts both in its content and beside it")
    if calls or thoughts:
        reasoning = {"reasoning_content": "\n".join(thoughts)} if thoughts else {}
        return [{**turn, "content": rest or "", **reasoning, **({"tool_calls": calls} if calls else {})}]
    return [*results, *([{**turn, "content": rest}] if rest else [])]


def joined_calls(before: Message | None, turn: Message, spelled: Any) -> Message | None:
    """Join a turn of tool calls with the turn `before` it; None: they stay separate turns.

    Consecutive calls become one turn. In ms-swift's spelling, so do a text and the calls that follow it.
    `spelled`: the turn's role as the data spell it, such as `function_call`.
    """
    if before is None or before["role"] != "assistant" or spelled not in CALL_ROLES:
        return None
    if spelled == "function_call" and (turn["content"] or not before.get("tool_calls")):
        return None
    if any(before.get(key) != turn.get(key) for key in TURN_WEIGHT_KEYS.intersection([*before, *turn])):
        return None
    if turn["content"] and not isinstance(before["content"], str):
        return None
    calls = [*(before.get("tool_calls") or []), *turn["tool_calls"]]
    content = before["content"] + turn["content"] if turn["content"] else before["content"]
    return {**turn, **before, "content": content, "tool_calls": calls}


def with_calls_as_text(message: Message, index: int) -> Message:
    """Return a turn without `tool_calls`: the JSON of each call stands at the end of the text, on its own line."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    if not isinstance(calls, list):  # the turn is no answer
        raise Skip(Reason.BAD_MESSAGE, f"message {index} has tool_calls that are no list of calls: {str(calls)[:80]}")
    functions = (_openai_call(call, index)["function"] for call in calls)
    written = "\n".join(json.dumps(_name_and_arguments(function), ensure_ascii=False) for function in functions)
    content = message["content"]
    if isinstance(content, str):
        content = f"{content}\n{written}" if content else written
    else:
        content = [*content, {"type": "text", "text": written}]
    return {**{key: item for key, item in message.items() if key != "tool_calls"}, "content": content}


def tool_schemas_of(value: Any) -> list[Any] | None:
    """Read tool schemas from a list or its JSON text; a function alone gets OpenAI's wrapper. None: no tools."""
    if isinstance(value, str) and value.strip():
        try:
            value = parse_json(value)
        except Skip as skip:
            raise Skip(Reason.BAD_MESSAGE, f"tools are not JSON: {skip.detail}") from None
    if not value:
        return None
    if not isinstance(value, list):
        raise Skip(Reason.BAD_MESSAGE, f"tools are a {type(value).__name__}, not a list")
    return [_tool_schema(item) for item in value]


def _tool_schema(item: Any) -> Any:
    if isinstance(item, str) and isinstance(schema := _parsed_json(item), dict):
        item = schema
    if not isinstance(item, dict) or "function" in item or "type" in item or not isinstance(item.get("name"), str):
        return item
    value_of_synonyms(item, ("parameters", "input_schema"))
    function = {("parameters" if key == "input_schema" else key): field for key, field in item.items()}
    return {"type": "function", "function": function}


def _text_and_calls(value: Any, index: int) -> tuple[str, list[Message]]:
    """Split the content of a turn of tool calls into its text and its calls."""
    text, calls = "", value
    if isinstance(value, str):
        calls = _parsed_json(value)
        if calls is None and (bodies := _TAGGED_CALL.findall(value)):
            text, calls = _TAGGED_CALL.sub("", value).strip(), _flattened(map(_parsed_json, bodies))
        elif calls is None and (thought := _THOUGHT_PATTERN.match(value)):
            text, calls = thought[0].strip(), _parsed_json(value[thought.end() :])
    calls = calls if isinstance(calls, list) else [calls]
    if not calls or None in calls:
        raise Skip(Reason.BAD_MESSAGE, f"message {index} is no JSON of a tool call: {str(value)[:80]}")
    return text, [_openai_call(call, index) for call in calls]


def _flattened(values: Any) -> list[Any]:
    return [item for value in values for item in (value if isinstance(value, list) else [value])]


def _parsed_json(text: str) -> Any:
    """Parse JSON; None: the text is no JSON."""
    try:
        return parse_json(text)
    except Skip:
        return None


def _openai_call(value: Any, index: int) -> Message:
    """Return a call in OpenAI's form; its arguments stay unchanged, also JSON in a string."""
    function = value.get("function", value) if isinstance(value, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        raise Skip(Reason.BAD_MESSAGE, f"message {index} is no JSON of a tool call with a name: {str(value)[:80]}")
    arguments = _arguments(value_of_synonyms(function, ("arguments", "parameters")), index)
    named = {"id": value["id"]} if isinstance(value.get("id"), str) else {}
    return {**named, "type": "function", "function": {"name": function["name"], "arguments": arguments}}


def _with_arguments(call: Message, index: int) -> Message:
    """Return an OpenAI call unchanged, except that missing arguments are added; raises Skip as `_openai_call` does."""
    arguments = _openai_call(call, index)["function"]["arguments"]
    function = call.get("function", call)
    if "arguments" not in function or function["arguments"] == arguments:
        return call
    changed = {**function, "arguments": arguments}
    return {**call, "function": changed} if "function" in call else changed


def _arguments(value: Any, index: int) -> Any:
    """Return the arguments of a call: an object, or the JSON of an object in a string."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return {}
    if not isinstance(value, dict) and not (isinstance(value, str) and isinstance(_parsed_json(value), dict)):
        detail = f"message {index} calls a tool with arguments that are no object: {str(value)[:80]}"
        raise Skip(Reason.BAD_MESSAGE, detail)
    return value


def _name_and_arguments(function: Mapping[str, Any]) -> dict[str, Any]:
    """Return name and arguments of a call; arguments in a JSON string become an object."""
    arguments = function.get("arguments", {})
    parsed = _parsed_json(arguments) if isinstance(arguments, str) else None
    return {"name": function.get("name"), "arguments": parsed if isinstance(parsed, dict) else arguments}
