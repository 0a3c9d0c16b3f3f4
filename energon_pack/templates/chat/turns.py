"""How a chat template writes a turn of the assistant: its header, its end, and the token that generation stops at.

<|im_start|>assistant\n  The answer.  <|im_end|>  \n
──────── header ───────               ─ ends ──
"""

import re
from collections.abc import Collection
from dataclasses import dataclass

#: Noncharacters around what is trained: no real text holds them.
OPEN, CLOSE = "\ufdd0", "\ufdd1"
_MARKS = re.compile(f"({OPEN}|{CLOSE})")


@dataclass(frozen=True)
class Turn:
    """How a template writes a turn of the assistant."""

    headers: tuple[str, ...]  # `<|im_start|>assistant\n`, and what else may precede what is trained; longest first
    begins: str  # the token every header begins with
    ends: str  # what ends a turn; with `is_next`, the token that begins the turn of a user
    is_next: bool  # turns have no end of their own: generation stops at the token that begins the next one
    has_prompt: bool  # the template writes the header where it is asked for a prompt
    lead: str = ""  # white space that begins a turn without a header: LLaVA's `[/INST]` belongs to the question

    def has_whole(self, marked: str) -> bool:
        """Whether what is trained is whole turns, from header to end, whatever white space is around a text."""
        before = _MARKS.split(marked)
        return all(
            text.endswith(self.headers if mark == OPEN else self.ends)
            for text, mark in zip(before[::2], before[1::2], strict=False)
        ) and bool(self.headers and self.ends)

    def begin(self, text: str, previous: int, start: int) -> int | None:
        """Where what is trained of a turn begins, after the header that stands between `previous` and `start`."""
        for header in self.headers:
            head = text.rfind(header, previous, start)
            if head >= 0 and not (self.ends and self.ends in text[head:start]):
                return head + len(header)
        return None

    def end(self, text: str, start: int, stop: int) -> int | None:
        """Where a turn ends, with its end; None where it is not between `start` and `stop`, or the next turn is."""
        end = text.find(self.ends, start, stop) if self.ends else -1
        if end < 0 or (self.begins and self.begins in text[start:end]):
            return None
        return end + len(self.ends)


class SpecialTokens:
    """The special tokens of a tokenizer, as they are found in a text."""

    def __init__(self, tokens: Collection[str]):
        longest_first = sorted(filter(None, tokens), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._some = re.compile(rf"(?:{self._pattern.pattern}|\s)*")

    def first(self, text: str) -> str:
        """The first one in a text; empty: there is none."""
        match = self._pattern.search(text)
        return match[0] if match else ""

    def last_end(self, text: str) -> int:
        """Where the last one in a text ends; 0: there is none."""
        return max((match.end() for match in self._pattern.finditer(text)), default=0)

    def at(self, text: str, position: int) -> str:
        """The one that begins at a position, after white space; empty: there is none."""
        while position < len(text) and text[position].isspace():
            position += 1
        match = self._pattern.match(text, position)
        return match[0] if match else ""

    def are_all(self, text: str, start: int = 0) -> bool:
        """Whether a text is, from a place on, nothing but special tokens and white space."""
        return self._some.fullmatch(text, start) is not None

    def whole(self, text: str, end: int) -> int:
        """The end, or the beginning of the token that it cuts in two."""
        for match in self._pattern.finditer(text):
            if match.start() < end < match.end():
                return match.start()
        return end


def shared_beginning(a: str, b: str) -> str:
    """The beginning that two texts share."""
    return a[: next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))]


def put_marks(text: str, spans: list[tuple[int, int]]) -> str:
    """A text with marks around each span; spans ascend, and none overlaps another."""
    pieces, position = [], 0
    for start, end in spans:
        assert position <= start <= end, f"spans overlap: {spans}"
        pieces += [text[position:start], OPEN, text[start:end], CLOSE]
        position = end
    return "".join([*pieces, text[position:]])
