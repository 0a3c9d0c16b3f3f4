"""Describe how a chat template writes an assistant's turn: its header, its end, and the token that stops generation.

<|im_start|>assistant\n  The answer.  <|im_end|>  \n
──────── header ───────               ─ ends ──
"""

import re
from collections.abc import Collection
from dataclasses import dataclass

#: noncharacters around trained parts; no real text contains them
OPEN, CLOSE = "\ufdd0", "\ufdd1"
_MARKS = re.compile(f"({OPEN}|{CLOSE})")


@dataclass(frozen=True)
class Turn:
    """How a template writes a turn of the assistant."""

    headers: tuple[str, ...]  # `<|im_start|>assistant\n`, and other texts before trained parts; longest first
    begins: str  # the token that every header begins with
    ends: str  # the text that ends a turn; with `is_next`, the token that begins a user's turn
    is_next: bool  # turns have no end of their own: generation stops at the token that begins the next turn
    has_prompt: bool  # the template writes the header as generation prompt
    lead: str = ""  # white space that begins a turn without a header: LLaVA's `[/INST]` belongs to the question

    def has_whole(self, marked: str) -> bool:
        """Say whether trained parts are whole turns, from header to end, whatever white space is around a text."""
        before = _MARKS.split(marked)
        return all(
            text.endswith(self.headers if mark == OPEN else self.ends)
            for text, mark in zip(before[::2], before[1::2], strict=False)
        ) and bool(self.headers and self.ends)

    def begin(self, text: str, previous: int, start: int) -> int | None:
        """Return where the trained part of a turn begins: after the header between `previous` and `start`."""
        for header in self.headers:
            head = text.rfind(header, previous, start)
            if head >= 0 and not (self.ends and self.ends in text[head:start]):
                return head + len(header)
        return None

    def end(self, text: str, start: int, stop: int) -> int | None:
        """Return where a turn ends, including its end; None: the end is not between `start` and `stop`."""
        end = text.find(self.ends, start, stop) if self.ends else -1
        if end < 0 or (self.begins and self.begins in text[start:end]):
            return None
        return end + len(self.ends)


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

    def last_end(self, text: str) -> int:
        """Return where the last special token in a text ends; 0: there is none."""
        return max((match.end() for match in self._pattern.finditer(text)), default=0)

    def at(self, text: str, position: int) -> str:
        """Return the special token at a position, after white space; empty: there is none."""
        while position < len(text) and text[position].isspace():
            position += 1
        match = self._pattern.match(text, position)
        return match[0] if match else ""

    def are_all(self, text: str, start: int = 0) -> bool:
        """Say whether a text consists, from a place on, only of special tokens and white space."""
        return self._some.fullmatch(text, start) is not None

    def whole(self, text: str, end: int) -> int:
        """Return `end`, or, if it cuts a token in two, the beginning of that token."""
        for match in self._pattern.finditer(text):
            if match.start() < end < match.end():
                return match.start()
        return end


def shared_beginning(a: str, b: str) -> str:
    """Return the common beginning of two texts."""
    return a[: next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))]


def put_marks(text: str, spans: list[tuple[int, int]]) -> str:
    """Put marks around each span of a text; spans ascend, and do not overlap."""
    pieces, position = [], 0
    for start, end in spans:
        assert position <= start <= end, f"spans overlap: {spans}"
        pieces += [text[position:start], OPEN, text[start:end], CLOSE]
        position = end
    return "".join([*pieces, text[position:]])
