"""Find the text that a chat template writes around the texts of a conversation, once for all conversations of a shape.

Most templates copy texts to their output and never look at them. Then conversations with the same roles and kinds of
parts differ only in their texts, and one rendering serves them all. `watched.py` proves that a template copies texts.
"""

import re
from collections.abc import Sequence
from itertools import count
from typing import Any

from energon_pack.samples.sample import Message
from energon_pack.samples.weights import TURN_WEIGHT_KEYS

BEGIN, END = "\ufdd2", "\ufdd3"  # noncharacters around the number of a text
_TEXT = re.compile(f"{BEGIN}([0-9]+){END}")
_PLAIN_KEYS = TURN_WEIGHT_KEYS | {"role", "content"}
_PART_KEYS = frozenset(("type", "text"))
Shape = tuple[Any, ...]


def shape_of(messages: Sequence[Message]) -> Shape | None:
    """Return what the output of a template that only copies texts depends on; None: it depends on more."""
    shape: list[Any] = []
    for message in messages:
        if not _PLAIN_KEYS.issuperset(message):
            return None
        content = message["content"]
        kinds: Any = "text"
        if not isinstance(content, str):
            if not all(map(_PART_KEYS.issuperset, content)):
                return None
            kinds = tuple(part["type"] for part in content)
        # As text: 1, 1.0 and true are equal, and a template may write them.
        weights = len(message) > 2 and repr(sorted(item for item in message.items() if item[0] in TURN_WEIGHT_KEYS))
        shape.append((message["role"], kinds, weights))
    return tuple(shape)


def texts_of(messages: Sequence[Message]) -> list[str]:
    """Return the texts of a conversation, in order."""
    texts = []
    for message in messages:
        content = message["content"]
        if isinstance(content, str):
            texts.append(content)
        else:
            texts += [part["text"] for part in content if part["type"] == "text"]
    return texts


def with_numbers(messages: Sequence[Message]) -> list[Message]:
    """Return the conversation with numbers in place of its texts."""
    number = count()

    def content(value: Any) -> Any:
        if isinstance(value, str):
            return f"{BEGIN}{next(number)}{END}"
        return [{**part, "text": content(part["text"])} if part["type"] == "text" else part for part in value]

    return [{**message, "content": content(message["content"])} for message in messages]


class Skeleton:
    """The output of a template with places for texts."""

    def __init__(self, output: str, num_texts: int):
        """Find the places.

        Raises:
            ValueError: a text is written several times, or not at all.
        """
        self._pieces = _TEXT.split(output)
        self._order = list(map(int, self._pieces[1::2]))
        if sorted(self._order) != list(range(num_texts)):
            raise ValueError(f"{num_texts} texts are written as {self._order[:20]}")

    def fill(self, texts: Sequence[str]) -> str:
        """Return the output for these texts."""
        pieces = list(self._pieces)
        pieces[1::2] = [texts[i] for i in self._order]
        return "".join(pieces)
