"""Tells which answers say nothing: they have neither text nor thought, tool call nor medium. Pure."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from energon_pack.samples.documents import DOCUMENT
from energon_pack.samples.sample import THOUGHT_KEYS, Message
from energon_pack.samples.weights import with_zero_weight

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
