"""Describe how a chat template writes an assistant's turn, and find a turn by rendering the conversation up to it.

<|im_start|>assistant\n  The answer.  <|im_end|>  \n
──────── header ───────               ─ ends ──

Prefix rendering renders the conversation before a turn and up to it; the turn is the difference:

    render(messages[:i], prompt)   <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n
    render(messages[: i + 1])      <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n
                                                                                       ── the turn ───
This does not work if a template writes the same turns differently when other turns follow.
"""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from energon_pack.samples.sample import REASONING_KEYS, Message
from energon_pack.samples.skip import Skip

#: noncharacters around trained parts; no real text contains them
OPEN, CLOSE = "\ufdd0", "\ufdd1"
_MARKS = re.compile(f"({OPEN}|{CLOSE})")

_MAX_CACHED_RESULTS = 10_000
_MANY_CALLS = 4  # calls of one turn; templates write all calls between the first and the last alike

TurnPattern = tuple[Any, ...]


@dataclass(frozen=True)
class TurnForm:
    """The texts that a chat template writes before and after the trained part of an assistant's turn."""

    headers: tuple[str, ...]  # `<|im_start|>assistant\n`, and other texts before trained parts; longest first
    header_token: str  # the token that every header begins with
    end_text: str  # the text that ends a turn; with `ends_at_next_turn`, the token that begins a user's turn
    ends_at_next_turn: bool  # turns have no end of their own: generation stops at the token that begins the next turn
    has_prompt: bool  # the template writes the header as generation prompt
    leading_space: str = (
        ""  # white space that begins a turn without a header: LLaVA's `[/INST]` belongs to the question
    )

    def fits_marked_spans(self, marked: str) -> bool:
        """Say whether each text between `OPEN` and `CLOSE` stands after a header, and ends as a turn ends."""
        before = _MARKS.split(marked)
        return all(
            text.endswith(self.headers if mark == OPEN else self.end_text)
            for text, mark in zip(before[::2], before[1::2], strict=False)
        ) and bool(self.headers and self.end_text)

    def begin(self, text: str, search_start: int, search_end: int) -> int | None:
        """Return where a turn's trained part begins, after the last header in `text[previous:start]`; None: nowhere."""
        for header in self.headers:
            head = text.rfind(header, search_start, search_end)
            if head >= 0 and not (self.end_text and self.end_text in text[head:search_end]):
                return head + len(header)
        return None

    def end(self, text: str, start: int, search_end: int) -> int | None:
        """Return where a turn ends, after its end token in `text[start:stop]`; None: there is none."""
        end = text.find(self.end_text, start, search_end) if self.end_text else -1
        if end < 0 or (self.header_token and self.header_token in text[start:end]):
            return None
        return end + len(self.end_text)


class SpecialTokens:
    """Finds the special tokens of a tokenizer in texts."""

    def __init__(self, tokens: Collection[str]):
        longest_first = sorted(filter(None, tokens), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._some = re.compile(rf"(?:{self._pattern.pattern}|\s)*")

    def first(self, text: str) -> str:
        """Return the first special token in a text; empty: there is none."""
        match = self._pattern.search(text)
        return match[0] if match else ""

    def all(self, text: str) -> set[str]:
        """Return the special tokens in a text."""
        return {*self._pattern.findall(text)}

    def end_of_last(self, text: str) -> int:
        """Return where the last special token in a text ends; 0: there is none."""
        return max((match.end() for match in self._pattern.finditer(text)), default=0)

    def token_at(self, text: str, position: int) -> str:
        """Return the special token at a position, or after white space there; empty: there is none."""
        while position < len(text) and text[position].isspace():
            position += 1
        match = self._pattern.match(text, position)
        return match[0] if match else ""

    def blanked(self, text: str) -> str:
        """Return a text of the same length, with null characters in place of its special tokens."""
        return self._pattern.sub(lambda token: "\0" * len(token[0]), text)

    def are_all(self, text: str, start: int = 0) -> bool:
        """Say whether a text, from `start` on, consists only of special tokens and white space."""
        return self._some.fullmatch(text, start) is not None

    def start_of_cut_token(self, text: str, end: int) -> int:
        """Return the position `end`, or the start of a special token if `end` lies within that token."""
        for match in self._pattern.finditer(text):
            if match.start() < end < match.end():
                return match.start()
        return end


def shared_beginning(a: str, b: str) -> str:
    """Return the common beginning of two texts."""
    return a[: next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))]


def mark_spans(text: str, spans: list[tuple[int, int]]) -> str:
    """Put `OPEN` and `CLOSE` around each span of a text; spans ascend and do not overlap."""
    pieces, position = [], 0
    for start, end in spans:
        assert position <= start <= end, f"spans overlap: {spans}"
        pieces += [text[position:start], OPEN, text[start:end], CLOSE]
        position = end
    return "".join([*pieces, text[position:]])


class Span(NamedTuple):
    """A range of characters in a rendered text that is a turn, or a part of one, and the message that it belongs to."""

    start: int
    end: int
    message: int
    weight: float | None = None  # of a part with its own: 0 for a call that `labels.tool_calls` masks; None: the turn's


class PrefixSpanFinder:
    """Finds a turn in a rendered text: renders the conversation up to the turn, with and without it, and compares."""

    def __init__(self, render: Callable[..., str], turn: TurnForm, special: SpecialTokens):
        self._render, self._turn, self._special = render, turn, special
        self._agrees: dict[TurnPattern, bool | None] = {}  # pattern of turns → whether prefixes agree; None: can't tell

    def span(self, messages: Sequence[Message], tools: Any, text: str, i: int) -> Span | None:
        """Return the span that message `i` adds to `text`; None: the template refuses, or rewrites earlier messages."""
        if not self._turn.has_prompt:
            return None
        try:
            before = self._render(messages[:i], tools, prompt=True)
            whole = self._render(messages[: i + 1], tools)
        except Skip:
            return None
        if not (whole.startswith(before) and text.startswith(before)):
            return None
        ends = self._turn.end_text
        end = whole.rfind(ends, len(before)) if ends and not self._turn.ends_at_next_turn else -1
        header = next((head for head in self._turn.headers if text.startswith(head, len(before))), "")
        end = end + len(ends) if end >= 0 and self._special.are_all(whole[end + len(ends) :]) else len(whole.rstrip())
        if end < len(before) + len(header) or not text.startswith(whole[:end]):
            return None
        return Span(len(before) + len(header), self.end_of_generation(text, end), i)

    def end_of_generation(self, text: str, end: int) -> int:
        """Return `end`, the end of a turn, or the end of the next turn's first token if generation stops only there."""
        token = self._special.token_at(text, end) if self._turn.ends_at_next_turn else ""
        return text.index(token, end) + len(token) if token else end

    def recall_comparison(self, pattern: TurnPattern) -> tuple[bool, bool | None]:
        """Return whether a turn of this pattern was compared, and what `compare_and_remember` found; None: unknown."""
        return pattern in self._agrees, self._agrees.get(pattern)

    def compare_and_remember(
        self, pattern: TurnPattern, text: str, spans: Sequence[Span], proved_span: Span | None
    ) -> bool | None:
        """Say whether a turn's spans have the text of `proved_span`, its span by prefix rendering, except white space.

        Returns None if `proved_span` is None. The first result for a pattern is kept for `recall_comparison`.
        """
        agrees = None if proved_span is None else self._are_same(text, spans, proved_span)
        if len(self._agrees) < _MAX_CACHED_RESULTS:
            self._agrees.setdefault(pattern, agrees)
        return agrees

    def _are_same(self, text: str, spans: Sequence[Span], proved: Span) -> bool:
        found_text = "".join("".join(text[span.start : span.end].split()) for span in spans)
        proved_text = "".join(text[proved.start : proved.end].split())
        ends = "".join(self._turn.end_text.split())
        if ends and proved_text.endswith(ends) and not found_text.endswith(ends):
            return False
        shorter, longer = sorted((found_text, proved_text), key=len)
        return longer.startswith(shorter) and self._special.are_all(longer[len(shorter) :])


def pattern_of(messages: Sequence[Message], i: int, last_question: int) -> TurnPattern:
    """Return a key of turns that a template writes alike: roles and keys of turn `i` and its neighbours, its place."""
    near = (messages[k] if 0 <= k < len(messages) else None for k in (i - 1, i, i + 1))
    return (*map(_message_form, near), i > last_question, i + 1 == len(messages))


def _message_form(message: Message | None) -> tuple[Any, ...] | None:
    if message is None:
        return None
    content, calls = message.get("content"), message.get("tool_calls")
    text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content or ())
    thoughts = [message[key] for key in REASONING_KEYS if isinstance(message.get(key), str)]
    return (
        message["role"],
        *sorted(key for key, value in message.items() if value is not None),
        type(content).__name__,
        bool(text.strip()),
        any(map(str.strip, thoughts)),
        "<think>" in text,
        min(len(calls), _MANY_CALLS) if isinstance(calls, list) else 0,
    )
