"""Find a turn by prefix rendering: render the conversation before it and up to it; the turn is the difference.

    render(messages[:i], prompt)   <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n
    render(messages[: i + 1])      <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n
                                                                                       ── the turn ───
This does not work if a template writes the same turns differently when other turns follow.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from energon_pack.samples.sample import Message
from energon_pack.samples.skip import Skip
from energon_pack.templates.chat.turns import SpecialTokens, Turn

_MOST_PATTERNS = 10_000
_MANY_CALLS = 4  # calls of one turn; templates write all calls between the first and the last alike

Pattern = tuple[Any, ...]


class Span(NamedTuple):
    """Trained characters."""

    start: int
    end: int
    message: int
    is_trained: bool = True  # False for a call that `labels.tool_calls` masks


class Prefixes:
    """Prefix rendering of one template's conversations."""

    def __init__(self, render: Callable[..., str], turn: Turn, special: SpecialTokens):
        self._render, self._turn, self._special = render, turn, special
        self._agrees: dict[Pattern, bool | None] = {}  # pattern of turns → whether prefixes agree; None: can't tell

    def span(self, messages: Sequence[Message], tools: Any, text: str, i: int) -> Span | None:
        """Return the text that a message adds to the turns before it; None if it changes those turns."""
        if not self._turn.has_prompt:
            return None
        try:
            before = self._render(messages[:i], tools, prompt=True)
            whole = self._render(messages[: i + 1], tools)
        except Skip:
            return None
        if not (whole.startswith(before) and text.startswith(before)):
            return None
        ends = self._turn.ends
        end = whole.rfind(ends, len(before)) if ends and not self._turn.is_next else -1
        header = next((head for head in self._turn.headers if text.startswith(head, len(before))), "")
        end = end + len(ends) if end >= 0 and self._special.are_all(whole[end + len(ends) :]) else len(whole.rstrip())
        if end < len(before) + len(header) or not text.startswith(whole[:end]):
            return None
        return Span(len(before) + len(header), self.next_turn(text, end), i)

    def next_turn(self, text: str, end: int) -> int:
        """Return the end of a turn, including the token that begins the next turn if generation stops at it."""
        token = self._special.at(text, end) if self._turn.is_next else ""
        return text.index(token, end) + len(token) if token else end

    def agrees(self, pattern: Pattern) -> tuple[bool, bool | None]:
        """Return whether turns of this pattern were compared before, and whether they agreed; None: can't tell."""
        return pattern in self._agrees, self._agrees.get(pattern)

    def compare(self, pattern: Pattern, text: str, spans: Sequence[Span], proved: Span | None) -> bool | None:
        """Say whether a turn's spans equal prefix rendering's, except for white space; None: can't tell."""
        agrees = None if proved is None else self._are_same(text, spans, proved)
        if len(self._agrees) < _MOST_PATTERNS:
            self._agrees.setdefault(pattern, agrees)
        return agrees

    def _are_same(self, text: str, spans: Sequence[Span], proved: Span) -> bool:
        mine = "".join("".join(text[span.start : span.end].split()) for span in spans)
        theirs = "".join(text[proved.start : proved.end].split())
        ends = "".join(self._turn.ends.split())
        if ends and theirs.endswith(ends) and not mine.endswith(ends):
            return False
        shorter, longer = sorted((mine, theirs), key=len)
        return longer.startswith(shorter) and self._special.are_all(longer[len(shorter) :])


def pattern_of(messages: Sequence[Message], i: int, last_question: int) -> Pattern:
    """Describe what a turn's form may depend on besides its texts: its content, its neighbours and its place."""
    near = (messages[k] if 0 <= k < len(messages) else None for k in (i - 1, i, i + 1))
    return (*map(_holds, near), i > last_question, i + 1 == len(messages))


def _holds(message: Message | None) -> tuple[Any, ...] | None:
    if message is None:
        return None
    content, calls = message.get("content"), message.get("tool_calls")
    text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content or ())
    return (
        message["role"],
        *sorted(message),
        type(content).__name__,
        bool(text.strip()),
        "<think>" in text,
        min(len(calls), _MANY_CALLS) if isinstance(calls, list) else 0,
    )
