"""Joins turns that are one answer, and keeps how much each of them counts in the loss. Pure.

    {"role": "assistant", "content": "I look.", "loss": false}   ┐  {"role": "assistant", "content": "I look.",
    {"role": "tool_call", "content": "{\\"name\\": \\"tide_at\\", …}"} ┘   "tool_calls": [{…}],
                                                                     "part_weights": {"content": [[7, {"loss": false}]],
                                                                                      "tool_calls": [[1, {}]]}}

The length of a part is its number of characters, or of calls.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

from energon_pack.samples.sample import REASONING_KEYS, Message
from energon_pack.samples.skip import Reason, Skip
from energon_pack.samples.weights import PART_KEYS, PART_WEIGHTS, TURN_WEIGHT_KEYS
from energon_pack.samples.written_calls import CALL_ROLES

_REASONING, _CONTENT, _CALLS = PART_KEYS
Parts = dict[str, list[list[Any]]]


def joined_calls(before: Message | None, turn: Message, spelled: Any) -> Message | None:
    """Join a turn of tool calls with the turn `before` it; None: they stay separate turns.

    Consecutive calls become one turn. In ms-swift's spelling, so do a text and the calls that follow it.
    `spelled`: the turn's role as the data spell it, such as `function_call`.
    """
    if before is None or before["role"] != "assistant" or spelled not in CALL_ROLES or PART_WEIGHTS in turn:
        return None
    if spelled == "function_call" and (turn["content"] or not before.get("tool_calls")):
        return None
    joined = {**turn, **before}
    if key := _key_of_thought(before) or _key_of_thought(turn):
        joined = {name: item for name, item in joined.items() if name == key or name not in REASONING_KEYS}
        joined[key] = "\n".join(filter(None, map(_thought, (before, turn))))
    if plans := [each["tool_plan"] for each in (before, turn) if isinstance(each.get("tool_plan"), str)]:
        joined["tool_plan"] = "\n".join(filter(None, plans))
    joined["content"] = _joined_content(before["content"], turn["content"])
    joined["tool_calls"] = [*(before.get("tool_calls") or []), *turn["tool_calls"]]
    keys = TURN_WEIGHT_KEYS.intersection([*before, *turn])
    if PART_WEIGHTS not in before and all(before.get(key) == turn.get(key) for key in keys):
        return joined
    joined = {key: item for key, item in joined.items() if key not in TURN_WEIGHT_KEYS}
    return {**joined, PART_WEIGHTS: _joined_part_weights(before, turn)}


def check_part_weights(message: Message, index: int) -> None:
    """Raise Skip (`bad_message`) unless the `part_weights` of a message are such as `joined_calls` writes."""
    parts = message[PART_WEIGHTS]
    has_lists = (
        isinstance(parts, dict) and {*parts} <= {*PART_KEYS} and all(isinstance(p, list) for p in parts.values())
    )
    each = [part for several in parts.values() for part in several] if has_lists else []
    if message["role"] != "assistant" or not each or not all(map(_is_part_weight, each)):
        raise Skip(Reason.BAD_MESSAGE, f"message {index} has the {PART_WEIGHTS} {str(parts)[:80]}")
    calls = message.get("tool_calls")
    if sum(num for num, _ in parts.get(_CALLS, ())) != (len(calls) if isinstance(calls, list) else 0):
        raise Skip(
            Reason.BAD_MESSAGE, f"message {index} has {PART_WEIGHTS} of another number of calls: {str(parts)[:80]}"
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


def part_weights_with_calls_as_text(message: Message, texts: list[str]) -> Message:
    """Return the `part_weights` of a message whose calls become these texts, at the end of its content; or nothing."""
    if PART_WEIGHTS not in message:
        return {}
    parts = {name: [*several] for name, several in message[PART_WEIGHTS].items()}
    keys = [keys for num, keys in parts.pop(_CALLS, ()) for _ in range(num)]
    as_texts = [[len(text), keys] for text, keys in zip(texts, keys, strict=True)]
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
