"""Reads questions and answers that stand in pairs, not in turns. Pure.

{"user": "What is this?", "assistant": "A cat."}      the_cauldron, FineVision, Mantis
{"human": "What is this?", "assistant": "A cat."}     ms-swift
{"question": "What is this?", "answers": ["A cat."]}  lists of VQA
{"prompts": ["What is this?"], "captions": ["A cat."]}
"""

from collections.abc import Mapping
from typing import Any

from energon_pack.samples.sample import CONTENT_KEYS, THOUGHT_KEYS, Message
from energon_pack.samples.skip import Reason, Skip, value_of_synonyms
from energon_pack.samples.weights import PART_WEIGHTS, TURN_WEIGHT_KEYS

_QUESTION_KEYS = ("user", "human", "question")
_ANSWER_KEYS = ("assistant", "gpt", "bot", "answer", "answers")
#: what an answer may have beside its text
_KEYS_OF_ANSWER = frozenset((*TURN_WEIGHT_KEYS, PART_WEIGHTS, *THOUGHT_KEYS, "tool_calls", "function_call"))
_PAIR_KEYS = frozenset((*_QUESTION_KEYS, *_ANSWER_KEYS))


def turn(role: str, content: Any) -> Message:
    return {"role": role, "content": content}


def question_and_answer_turns(question: Any, answer: Any) -> list[Message]:
    return [turn("user", question), turn("assistant", answer)]


def first_answer(answer: Any) -> Any:
    """Return the first of several answers, or the only one; of `{"answer": …}`, as VQAv2 has each in a list, its text.

    An empty list is returned as it is.
    """
    first = answer[0] if isinstance(answer, list) and answer else answer
    return first["answer"] if first is not answer and isinstance(first, Mapping) and "answer" in first else first


def turns_of_pair(message: Mapping[str, Any], index: int) -> list[Message] | None:
    """Return the question and the answer of one entry as turns; None: it has not one key of each.

    Of several answers to one question, the first is taken. The answer has the entry's weights, thoughts and calls.
    """
    asks = [key for key in _QUESTION_KEYS if key in message]
    answers = [key for key in _ANSWER_KEYS if key in message]
    if len(asks) != 1 or len(answers) != 1:
        return None
    answer = message[answers[0]]
    if answers[0] == "answers" and answer:
        answer = first_answer(answer)
    for key, text in ((asks[0], message[asks[0]]), (answers[0], answer)):
        if not isinstance(text, str):
            raise Skip(Reason.BAD_MESSAGE, f"message {index} has a {key} that is no text: {str(text)[:80]}")
    spelled = {key: message[key] for key in CONTENT_KEYS if isinstance(message.get(key), str | list)}
    answer = value_of_synonyms({answers[0]: answer, **spelled}, (answers[0], *spelled), "messages[].")
    more = {key: item for key, item in message.items() if key in _KEYS_OF_ANSWER and (item or item == 0)}
    question, answered = question_and_answer_turns(message[asks[0]], answer)
    return [question, answered | more]


def without_pair_keys(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry without the keys of its question and its answer."""
    return {key: item for key, item in message.items() if key not in _PAIR_KEYS}


def turns_of_prompts_and_captions(value: Mapping[str, Any]) -> list[Message]:
    """Return the turns of a record with `prompts` and as many `captions`: each a text, a list, or a list in a list."""
    sides = []
    for key in ("prompts", "captions"):
        side = value[key] if isinstance(value[key], list) else [value[key]]
        if len(side) == 1 and isinstance(side[0], list):
            side = side[0]
        if not all(isinstance(text, str) for text in side):
            raise Skip(Reason.BAD_MESSAGE, f"{key} are not all text")
        sides.append(side)
    if len(sides[0]) != len(sides[1]):
        raise Skip(Reason.BAD_MESSAGE, f"{len(sides[0])} prompts for {len(sides[1])} captions")
    return [message for p, c in zip(*sides, strict=True) for message in question_and_answer_turns(p, c)]
