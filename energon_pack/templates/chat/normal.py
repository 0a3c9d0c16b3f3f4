"""A conversation as transformers hands it to a chat template: two changes of messages before anything is rendered."""

from collections.abc import Sequence
from typing import Any

from energon_pack.samples.sample import REASONING_KEYS, Message


def normal(messages: list[Message]) -> list[Message]:
    """Messages without keys that are None, and with their reasoning under both names that templates read.

    Keys inside tool calls and content parts stay, None or not, as they do there.
    """
    return [_normal(message) for message in messages]


def last_question(messages: Sequence[Message]) -> int:
    """The number of the last turn of a user; -1: there is none."""
    return max((i for i, message in enumerate(messages) if message["role"] == "user"), default=-1)


def reasoning_of(message: Message) -> Any:
    """The reasoning of a message, by the first name it has one under; None: it has none."""
    return next((message[key] for key in REASONING_KEYS if message.get(key) is not None), None)


def with_reasoning(message: Message, text: str) -> Message:
    """A message with another text as its reasoning."""
    return {**message, **dict.fromkeys(REASONING_KEYS[:2], text)}


def _normal(message: Message) -> Message:
    if None in message.values():
        message = {key: value for key, value in message.items() if value is not None}
    if len(message) < 3 or (reasoning := reasoning_of(message)) is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}
