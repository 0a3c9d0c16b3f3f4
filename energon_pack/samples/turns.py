"""Read the turns of a conversation: roles, tool calls as written, empty answers, turns that are one answer. Pure.

`find_tool_calls_in_turn` finds the calls of a turn in every spelling:

    {"from": "function_call", "value": "{\\"name\\": \\"tide_at\\", \\"args\\": {}}"} ─► {"name": "tide_at", "args": {}}

`join_tool_call_turns` makes one turn of a text and its calls, with the weight that each had:

    {"role": "assistant", "content": "I look.", "loss": false}   ┐  {"role": "assistant", "content": "I look.",
    {"role": "tool_call", "content": "{\\"name\\": \\"tide_at\\", …}"} ┘   "tool_calls": [{…}],
                                                                     "part_weights": {"content": [[7, {"loss": false}]],
                                                                                      "tool_calls": [[1, {}]]}}

A part of `part_weights` has a length: its number of characters, or of calls.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from energon_pack.samples.documents import DOCUMENT
from energon_pack.samples.raw_record import parse_json_or_skip
from energon_pack.samples.sample import ARGUMENT_KEYS, CONTENT_KEYS, REASONING_KEYS, ROLE_KEYS, THOUGHT_KEYS, Message
from energon_pack.samples.skip import Reason, Skip, key_of_synonyms
from energon_pack.samples.weights import PART_KEYS, PART_WEIGHTS, TURN_WEIGHT_KEYS, with_zero_weight

#: roles of turns that are calls
CALL_ROLES = frozenset(("function_call", "tool_call"))
#: keys of a content part of type tool_call that holds the text of a call
VALUE_KEYS = ("value", "tool_call")
_THOUGHT_PATTERN = re.compile(r"\s*<think>.*?</think>", re.DOTALL)
_TAGGED_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


def find_tool_calls_in_turn(turn: Mapping[str, Any]) -> Iterator[tuple[Message, bool]]:
    """Yield each call of a turn that is an object, and whether it is the text of a turn or of a part."""
    content = turn.get(key_of_synonyms(turn, CONTENT_KEYS))
    is_call_turn = turn.get(key_of_synonyms(turn, ROLE_KEYS)) in CALL_ROLES
    if len(turn) < 3 and not is_call_turn and not isinstance(content, list):
        return
    calls = turn.get("tool_calls")
    beside = [turn.get("function_call"), *_as_list(parse_json_or_none(calls) if isinstance(calls, str) else calls)]
    in_text = split_text_and_tool_calls(content)[1] if is_call_turn else []
    for part in content if isinstance(content, list) and not is_call_turn else ():
        if is_tool_call_part(part):
            beside.append(part)
        elif isinstance(part, dict) and part.get("type") == "tool_call":
            in_text += split_text_and_tool_calls(part.get("value") or part.get("tool_call"))[1]
    yield from ((call, False) for call in beside if isinstance(call, dict))
    yield from ((call, True) for call in in_text if isinstance(call, dict))


def is_tool_call_part(part: Any) -> bool:
    """Tell whether a content part is a call itself: Anthropic's, or LangChain's, which has no value."""
    kind = part.get("type") if isinstance(part, dict) else None
    return bool(kind == "tool_use" or (kind == "tool_call" and part.keys().isdisjoint(VALUE_KEYS)))


def split_text_and_tool_calls(content: Any) -> tuple[str, list[Any]]:
    """Split the content of a turn of tool calls into its text and its calls; None: a call that is no JSON.

    The content is the JSON of one call or of a list, perhaps after a thought; or a text with `<tool_call>` tags.
    """
    text, calls = "", content
    if isinstance(content, str):
        calls = parse_json_or_none(content)
        if calls is None and (bodies := _TAGGED_CALL.findall(content)):
            parsed = (_as_list(parse_json_or_none(body)) for body in bodies)
            text, calls = _TAGGED_CALL.sub("", content).strip(), [call for several in parsed for call in several]
        elif calls is None and (thought := _THOUGHT_PATTERN.match(content)):
            text, calls = thought[0].strip(), parse_json_or_none(content[thought.end() :])
    return text, _as_list(calls)


def objects_with_call_keys(tool_call: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the objects that hold a call's keys: the call, and its `function` if that is an object."""
    function = tool_call.get("function")
    return [tool_call, function] if isinstance(function, dict) else [tool_call]


def has_argument_key(tool_call: Mapping[str, Any]) -> bool:
    """Tell whether a call has one of the keys that hold arguments."""
    return any(not holder.keys().isdisjoint(ARGUMENT_KEYS) for holder in objects_with_call_keys(tool_call))


def parse_json_or_none(text: str) -> Any:
    """Parse JSON; None: the text is no JSON."""
    try:
        return parse_json_or_skip(text)
    except Skip:
        return None


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


#: roles of the turns that answer
ANSWER_ROLES = ("assistant", "gpt", "bot", "chatgpt", "bing", "model", "bard")
#: the roles that are known, and the one of ours that each means
ROLES = {
    **{role: role for role in ("system", "developer", "user", "assistant", "tool", DOCUMENT)},
    "human": "user",
    **dict.fromkeys((*ANSWER_ROLES, *CALL_ROLES), "assistant"),
    **dict.fromkeys(("function", "observation", "function_response", "tool_response", "ipython"), "tool"),
}
#: who asks and who answers; a text of a `developer` or a `tool` may be any; `prompter` is OpenAssistant's
_ROLES_OF_MESSAGES = (*(role for role, ours in ROLES.items() if ours in ("user", "assistant")), "prompter")


def refuse_lone_message(record_json: Mapping[str, Any]) -> None:
    """Raise Skip (`bad_message`) for a `text` with a role: one message of a conversation, as OpenAssistant has them."""
    roles = (role for role in map(record_json.get, ROLE_KEYS) if isinstance(role, str) and role in _ROLES_OF_MESSAGES)
    if role := next(roles, None):
        advice = "write the messages of each conversation as `messages`; source.sample_type=document trains it alone"
        raise Skip(Reason.BAD_MESSAGE, f"text has the role {role!r}: it is a message, not a conversation: {advice}")


#: an empty thought says no more than white space
_BLANK = re.compile(r"\s*(?:<think>\s*</think>\s*)?")


def is_empty_answer(message: Message) -> bool:
    """Tell whether a turn is an answer that says nothing; a document is one, too."""
    if message["role"] not in ("assistant", DOCUMENT):
        return False
    content = message["content"]
    if isinstance(content, str):
        is_blank = _BLANK.fullmatch(content) is not None
    else:
        is_blank = all(part["type"] == "text" and _BLANK.fullmatch(part["text"]) for part in content)
    return (
        is_blank
        and not message.get("tool_calls")
        and not any(str(message.get(key) or "").strip() for key in THOUGHT_KEYS)
    )


class EmptyAnswerCount(NamedTuple):
    """How many answers of a conversation say nothing, and whether all of them do."""

    number: int
    are_all: bool


NO_EMPTY_ANSWERS = EmptyAnswerCount(0, False)


def count_empty_answers(messages: Sequence[Message]) -> EmptyAnswerCount:
    """Count the answers of a conversation that say nothing."""
    answers = [message for message in messages if message["role"] in ("assistant", DOCUMENT)]
    number = sum(map(is_empty_answer, answers))
    return EmptyAnswerCount(number, 0 < number == len(answers))


def with_empty_answers_untrained(messages: Sequence[Message]) -> Sequence[Message]:
    """Return messages whose empty answers have the weight 0, whatever their own keys say."""
    if not any(map(is_empty_answer, messages)):
        return messages
    return [with_zero_weight(message) if is_empty_answer(message) else message for message in messages]


_REASONING, _CONTENT, _CALLS = PART_KEYS
Parts = dict[str, list[list[Any]]]


def join_tool_call_turns(previous_turn: Message | None, turn: Message, written_role: Any) -> Message | None:
    """Join a turn of tool calls with the turn `previous_turn` it; None: they stay separate turns.

    Consecutive calls become one turn. In ms-swift's spelling, so do a text and the calls that follow it.
    `written_role`: the turn's role as the data spell it, such as `function_call`.
    """
    if (
        previous_turn is None
        or previous_turn["role"] != "assistant"
        or written_role not in CALL_ROLES
        or PART_WEIGHTS in turn
    ):
        return None
    if written_role == "function_call" and (turn["content"] or not previous_turn.get("tool_calls")):
        return None
    joined = {**turn, **previous_turn}
    if key := _key_of_thought(previous_turn) or _key_of_thought(turn):
        joined = {name: item for name, item in joined.items() if name == key or name not in REASONING_KEYS}
        joined[key] = "\n".join(filter(None, map(_thought, (previous_turn, turn))))
    if plans := [each["tool_plan"] for each in (previous_turn, turn) if isinstance(each.get("tool_plan"), str)]:
        joined["tool_plan"] = "\n".join(filter(None, plans))
    joined["content"] = _joined_content(previous_turn["content"], turn["content"])
    joined["tool_calls"] = [*(previous_turn.get("tool_calls") or []), *turn["tool_calls"]]
    keys = TURN_WEIGHT_KEYS.intersection([*previous_turn, *turn])
    if PART_WEIGHTS not in previous_turn and all(previous_turn.get(key) == turn.get(key) for key in keys):
        return joined
    joined = {key: item for key, item in joined.items() if key not in TURN_WEIGHT_KEYS}
    return {**joined, PART_WEIGHTS: _joined_part_weights(previous_turn, turn)}


def refuse_wrong_part_weights(message: Message, turn_index: int) -> None:
    """Raise Skip (`bad_message`) unless the `part_weights` of a message are such as `join_tool_call_turns` writes."""
    parts = message[PART_WEIGHTS]
    has_lists = (
        isinstance(parts, dict) and {*parts} <= {*PART_KEYS} and all(isinstance(p, list) for p in parts.values())
    )
    each = [part for several in parts.values() for part in several] if has_lists else []
    if message["role"] != "assistant" or not each or not all(map(_is_part_weight, each)):
        raise Skip(Reason.BAD_MESSAGE, f"message {turn_index} has the {PART_WEIGHTS} {str(parts)[:80]}")
    calls = message.get("tool_calls")
    if sum(num for num, _ in parts.get(_CALLS, ())) != (len(calls) if isinstance(calls, list) else 0):
        raise Skip(
            Reason.BAD_MESSAGE, f"message {turn_index} has {PART_WEIGHTS} of another number of calls: {str(parts)[:80]}"
        )


def cut_by_weights(texts: Sequence[str], message: Message, name: str) -> list[list[tuple[int, str]]]:
    """Cut the texts of a message where its `part_weights` change; return the pieces of each, with the part's number.

    Args:
        name: what the texts are of the message, `reasoning` or `content`.

    Raises:
        Skip: `bad_message`: a setting changed the texts since.
    """
    nums = [num for num, _ in message.get(PART_WEIGHTS, {}).get(name, ())]
    if len(nums) < 2:
        return [[(0, text)] for text in texts]
    if sum(nums) != sum(map(len, texts)):
        detail = f"a turn's {name} is not {sum(nums)} characters long, for which it has weights: a setting changes it"
        raise Skip(Reason.BAD_MESSAGE, detail)
    ends = [*accumulate(nums)]
    pieces, start = [], 0
    for text in texts:
        edges = [0, *(end - start for end in ends if 0 < end - start < len(text)), len(text)]
        pieces.append([(bisect_right(ends, start + one), text[one:other]) for one, other in pairwise(edges)])
        start += len(text)
    return pieces


def part_weights_with_calls_as_text(message: Message, call_texts: list[str]) -> Message:
    """Return the `part_weights` of a message whose calls become these texts, at the end of its content; or nothing."""
    if PART_WEIGHTS not in message:
        return {}
    parts = {name: [*several] for name, several in message[PART_WEIGHTS].items()}
    keys = [keys for num, keys in parts.pop(_CALLS, ()) for _ in range(num)]
    as_texts = [[len(text), keys] for text, keys in zip(call_texts, keys, strict=True)]
    return {PART_WEIGHTS: {**parts, _CONTENT: _merged_part_weights([*parts.get(_CONTENT, ()), *as_texts])}}


def _key_of_thought(message: Message) -> str | None:
    return next((key for key in REASONING_KEYS if message.get(key)), None)


def _thought(message: Message) -> str:
    key = _key_of_thought(message)
    return str(message[key]) if key else ""


def _joined_content(one: Any, other: Any) -> Any:
    if not one or not other:
        return one or other
    if isinstance(one, str) and isinstance(other, str):
        return one + other
    return [*_as_parts(one), *_as_parts(other)]


def _as_parts(content: Any) -> list[Message]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _joined_part_weights(before: Message, turn: Message) -> Parts:
    """Return the `part_weights` of two turns that are one."""
    parts, own = before.get(PART_WEIGHTS) or _part_weights_of(before), _part_weights_of(turn)
    if _REASONING in parts and _REASONING in own:
        own[_REASONING][0][0] += 1  # the newline between
    return {
        name: _merged_part_weights([*parts.get(name, ()), *own.get(name, ())])
        for name in PART_KEYS
        if {name} & {*parts, *own}
    }


def _part_weights_of(turn: Message) -> Parts:
    keys = {key: turn[key] for key in sorted(TURN_WEIGHT_KEYS.intersection(turn))}
    text = "".join(part.get("text", "") for part in _as_parts(turn["content"]))
    lengths = (len(_thought(turn)), len(text), len(turn.get("tool_calls") or ()))
    return {name: [[length, keys]] for name, length in zip(PART_KEYS, lengths, strict=True) if length}


def _merged_part_weights(parts: list[list[Any]]) -> list[list[Any]]:
    """Join neighbours with the same weight keys."""
    merged: list[list[Any]] = []
    for num, keys in parts:
        if merged and merged[-1][1] == keys:
            merged[-1] = [merged[-1][0] + num, keys]
        else:
            merged.append([num, keys])
    return merged


def _is_part_weight(part: Any) -> bool:
    if not isinstance(part, list) or len(part) != 2 or type(part[0]) is not int or not isinstance(part[1], dict):
        return False
    return bool(part[0] > 0) and TURN_WEIGHT_KEYS.issuperset(part[1])
