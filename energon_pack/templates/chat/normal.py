"""Change messages as transformers does before it hands them to a chat template."""

from collections.abc import Sequence
from typing import Any

from energon_pack.samples.sample import REASONING_KEYS, Message


def normal(messages: list[Message]) -> list[Message]:
    """Return messages without keys that are None, and with their reasoning under both names that templates read.

    Keys inside tool calls and content parts stay, even if None, as in transformers.
    """
    return [_normal(message) for message in messages]


def last_question(messages: Sequence[Message]) -> int:
    """Return the number of the user's last turn; -1: there is none."""
    return max((i for i, message in enumerate(messages) if message["role"] == "user"), default=-1)


def reasoning_of(message: Message) -> Any:
    """Return the reasoning of a message, from the first key that has it; None: it has none."""
    return next((message[key] for key in REASONING_KEYS if message.get(key) is not None), None)


def with_reasoning(message: Message, text: str) -> Message:
    """Return a message with another text as its reasoning."""
    return {**message, **dict.fromkeys(REASONING_KEYS[:2], text)}


def _normal(message: Message) -> Message:
    if None in message.values():
        message = {key: value for key, value in message.items() if value is not None}
    if len(message) < 3 or (reasoning := reasoning_of(message)) is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}
