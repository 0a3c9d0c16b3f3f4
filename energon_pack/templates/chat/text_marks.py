"""Put marks around the texts of a conversation, to find where each text stands in the rendered output.

    {"role": "assistant", "content": "Hi ", "tool_calls": [{"function": {"name": "f", "arguments": {"x": "y"}}}]}
      texts:  0 "Hi", of message 1 · 1 "f", of its call 0 · 2 "y", of its call 0

Marks are Unicode noncharacters, which no real text contains. They stand inside the white space around a text, because
templates strip that. If a template cuts a text, the text may lose one of its two marks.

Most templates copy texts to their output and never look at them. Then conversations with the same roles and kinds of
parts differ only in their texts, and one rendering with numbers in place of texts, a `Skeleton`, serves them all.
`guarded_template.py` proves that a template copies texts.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import count
from typing import Any, NamedTuple

from energon_pack.samples.sample import REASONING_KEYS, Message
from energon_pack.samples.turns import cut_by_weights
from energon_pack.samples.weights import PART_WEIGHTS, TURN_WEIGHT_KEYS

#: noncharacters that are kept in rendered texts
NONCHARACTERS = re.compile("[\ufdd0-\ufdef]")
#: marks around the output of a template's own `{% generation %}`
GENERATION = ("\ufde0", "\ufde1")
_TEXT_BEGINS, _TEXT_ENDS, _NUMBER_ENDS = "\ufdd4", "\ufdd6", "\ufdd5"
_DIGITS = {ord(digit): 0xFDD8 + int(digit) for digit in "01234567"}
_MARK = re.compile(f"([{_TEXT_BEGINS}{_TEXT_ENDS}])([\ufdd8-\ufddf]+){_NUMBER_ENDS}|([{''.join(GENERATION)}])")

BEFORE_NUMBER, AFTER_NUMBER = "\ufdd2", "\ufdd3"  # noncharacters around the number of a text
_NUMBERED_TEXT = re.compile(f"{BEFORE_NUMBER}([0-9]+){AFTER_NUMBER}")
_PLAIN_KEYS = TURN_WEIGHT_KEYS | {"role", "content"}
_PART_KEYS = frozenset(("type", "text"))
Shape = tuple[Any, ...]


class MarkLevel(Enum):
    """Which texts of a conversation get marks; a template may refuse marks in some texts, or leave some texts out."""

    ALL = "all"
    EMPTY = "empty"  # also empty texts beside reasoning or tool calls
    NAMES = "names"  # no arguments of tool calls
    IDS = "ids"  # of tool calls only the ids


class TextOwner(NamedTuple):
    """The index of the message that a text belongs to, and of its tool call if the text is part of one."""

    message: int
    call: int | None = None  # the number of the tool call that it belongs to; None: it belongs to none
    part: int = 0  # numbers the texts of a message that have weights of their own


class TextEdge(NamedTuple):
    """A position in a rendered text at which a text of the conversation begins or ends."""

    leaf: int
    position: int


@dataclass(frozen=True)
class TextAndMarks:
    """A rendered text without its marks, and the positions at which they were."""

    text: str
    marks: list[TextEdge]  # ascending
    generation_blocks: list[tuple[int, int]]  # the output of the template's `{% generation %}`


@dataclass(frozen=True)
class MarkedConversation:
    """A conversation, and its text as rendered with marks around the texts of its messages."""

    messages: Sequence[Message]
    tools: Any
    written: TextAndMarks
    leaves: list[TextOwner]
    level: MarkLevel

    @property
    def text(self) -> str:
        return self.written.text

    @property
    def marks_and_text_owners(self) -> Iterator[tuple[TextEdge, TextOwner]]:
        """Yield each mark, and the text in the conversation that it belongs to."""
        return ((mark, self.leaves[mark.leaf]) for mark in self.written.marks)


def mark_texts(messages: Sequence[Message], level: MarkLevel) -> tuple[list[Message], list[TextOwner]]:
    """Return a copy of the messages with numbered marks around their texts, and for each number the text's owner."""
    leaves: list[TextOwner] = []

    def marked(text: str, leaf: TextOwner) -> str:
        number = f"{len(leaves):o}".translate(_DIGITS)
        leaves.append(leaf)
        first, last = f"{_TEXT_BEGINS}{number}{_NUMBER_ENDS}", f"{_TEXT_ENDS}{number}{_NUMBER_ENDS}"
        core = text.strip()
        before, _, after = text.partition(core) if core else ("", "", text)
        return f"{before}{first}{core}{last}{after}"

    return [_marked_message(index, message, level, marked) for index, message in enumerate(messages)], leaves


def remove_text_marks(output: str) -> TextAndMarks:
    """Remove the marks of `mark_texts` from a rendered text; return the text, and the positions of the marks in it."""
    pieces: list[str] = []
    marks: list[TextEdge] = []
    generated: list[tuple[int, int]] = []
    cursor = position = begin = 0
    for match in _MARK.finditer(output):
        pieces.append(output[cursor : match.start()])
        position += match.start() - cursor
        cursor = match.end()
        if match[3] == GENERATION[0]:
            begin = position
        elif match[3]:
            generated.append((begin, position))
        else:
            marks.append(TextEdge(int("".join(str(ord(digit) - 0xFDD8) for digit in match[2]), 8), position))
    return TextAndMarks("".join([*pieces, output[cursor:]]), marks, generated)


def _marked_message(index: int, message: Message, level: MarkLevel, marked: Any) -> Message:
    calls = message.get("tool_calls")
    calls = calls if isinstance(calls, list) else []
    new = dict(message)
    reasoning = next(
        (key for key in REASONING_KEYS if isinstance(message.get(key), str) and message[key].strip()), None
    )
    if reasoning is not None:
        (pieces,) = cut_by_weights([message[reasoning]], message, "reasoning")
        new[reasoning] = _marked_pieces(pieces, index, 0, marked)
    content = message.get("content")
    first = len(message.get(PART_WEIGHTS, {}).get("reasoning", ()))
    if isinstance(content, list):
        new["content"] = _marked_parts(content, message, index, first, marked)
    elif isinstance(content, str) and (content.strip() or level is MarkLevel.EMPTY or not (calls or reasoning)):
        (pieces,) = cut_by_weights([content], message, "content")
        new["content"] = _marked_pieces(pieces, index, first, marked)
    if calls:
        new["tool_calls"] = [
            _marked_call(call, TextOwner(index, number), level, marked) for number, call in enumerate(calls)
        ]
    return new


def _marked_pieces(pieces: Sequence[tuple[int, str]], index: int, first: int, marked: Any) -> str:
    """Return the pieces of a text with marks around each; `first`: the number of the text's first part."""
    return "".join(marked(text, TextOwner(index, part=first + number)) for number, text in pieces)


def _marked_parts(parts: list[Any], message: Message, index: int, first: int, marked: Any) -> list[Any]:
    """Return content parts with marks around their texts; an empty text gets marks only if all are empty."""
    texts = [number for number, part in enumerate(parts) if part.get("type") == "text"]
    spoken = [number for number in texts if parts[number]["text"].strip()] or texts[:1]
    cut = dict(zip(texts, cut_by_weights([parts[number]["text"] for number in texts], message, "content"), strict=True))
    new = [
        {**part, "text": _marked_pieces(cut[number], index, first, marked)} if number in spoken else part
        for number, part in enumerate(parts)
    ]
    return new if spoken else [*new, {"type": "text", "text": marked("", TextOwner(index))}]


def _marked_call(call: Any, leaf: TextOwner, level: MarkLevel, marked: Any) -> Any:
    if not isinstance(call, dict):
        return call
    if level is MarkLevel.IDS:
        return {**call, "id": marked(call["id"], leaf)} if isinstance(call.get("id"), str) else call
    function = call.get("function", call)
    if not isinstance(function, dict):
        return call
    new = dict(function)
    if isinstance(function.get("name"), str):
        new["name"] = marked(function["name"], leaf)
    if level in (MarkLevel.ALL, MarkLevel.EMPTY) and "arguments" in function:
        new["arguments"] = _marked_value(function["arguments"], leaf, marked)
    return {**call, "function": new} if "function" in call else new


def _marked_value(value: Any, leaf: TextOwner, marked: Any) -> Any:
    if isinstance(value, str):
        return marked(value, leaf)
    if isinstance(value, list):
        return [_marked_value(item, leaf, marked) for item in value]
    if isinstance(value, dict):
        return {key: _marked_value(item, leaf, marked) for key, item in value.items()}
    return value


# -------------------------------------------------------------------------- one rendering for all texts of a shape


def conversation_shape_without_texts(messages: Sequence[Message]) -> Shape | None:
    """Return a key of what messages have besides texts: roles, part types and weights; None: they have other keys, too.

    For two conversations of one shape, a template that only copies texts writes the same output around the texts.
    """
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
    """Return the texts of messages and of their content parts, in order."""
    texts = []
    for message in messages:
        content = message["content"]
        if isinstance(content, str):
            texts.append(content)
        else:
            texts += [part["text"] for part in content if part["type"] == "text"]
    return texts


def with_texts_replaced_by_numbers(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with each text replaced by its number (0, 1 …) between two marks, for `Skeleton`."""
    number = count()

    def content(value: Any) -> Any:
        if isinstance(value, str):
            return f"{BEFORE_NUMBER}{next(number)}{AFTER_NUMBER}"
        return [{**part, "text": content(part["text"])} if part["type"] == "text" else part for part in value]

    return [{**message, "content": content(message["content"])} for message in messages]


class Skeleton:
    """A rendered conversation with gaps for its texts; filled, it is the output for any conversation of its shape."""

    def __init__(self, output: str, num_texts: int):
        """Find the gaps in the rendered numbered texts; raises ValueError unless each number stands there once."""
        self._pieces = _NUMBERED_TEXT.split(output)
        self._order = list(map(int, self._pieces[1::2]))
        if sorted(self._order) != list(range(num_texts)):
            raise ValueError(f"{num_texts} texts are written as {self._order[:20]}")

    def fill(self, texts: Sequence[str]) -> str:
        """Return the output for a conversation with these texts."""
        pieces = list(self._pieces)
        pieces[1::2] = [texts[i] for i in self._order]
        return "".join(pieces)
