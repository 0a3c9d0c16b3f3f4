"""A turn of the assistant in the output of a chat template: the marks that find it, its header and its end."""

import re
from dataclasses import dataclass

from energon_pack.samples.sample import Message

#: Noncharacters around what is trained: no real text holds them.
OPEN, CLOSE = "\ufdd0", "\ufdd1"
_MARKS = re.compile(f"({OPEN}|{CLOSE})")


@dataclass(frozen=True)
class Turn:
    """How a template writes a turn of the assistant."""

    headers: tuple[str, ...]  # `<|im_start|>assistant\n`, and what else may precede what is trained; longest first
    begins: str  # the token every header begins with
    ends: str  # the token that ends a turn

    def has_whole(self, marked: str) -> bool:
        """Whether what is trained is whole turns, from header to end, whatever white space is around a text."""
        before = _MARKS.split(marked)
        return all(
            text.endswith(self.headers if mark == OPEN else self.ends)
            for text, mark in zip(before[::2], before[1::2], strict=False)
        ) and bool(self.headers and self.ends)

    def spans(self, marked: str, plain: str, num_turns: int) -> list[tuple[int, int]] | None:
        """The turns of a text that was rendered with marks and without; None where the marks don't tell."""
        pieces = _MARKS.split(marked)
        if "".join(pieces[::2]) != plain or pieces.count(CLOSE) != num_turns:
            return None
        spans = []
        position = previous = 0
        opened: int | None = None
        for text, mark in zip(pieces[::2], pieces[1::2], strict=False):
            position += len(text)
            if mark == OPEN:
                opened = position
                continue
            start = position if opened is None else opened
            begin = self._begin(plain, previous, start)
            if begin is None and opened is None:
                return None
            start = start if begin is None else begin
            previous = self.end_after(plain, position) or position
            spans.append((start, previous))
            opened = None
        return spans

    def _begin(self, text: str, previous: int, start: int) -> int | None:
        """Where the turn that holds `start` begins, after its header."""
        for header in self.headers:
            head = text.rfind(header, previous, start)
            if head >= 0 and not (self.ends and self.ends in text[head:start]):
                return head + len(header)
        return None

    def end_after(self, text: str, start: int) -> int | None:
        """The end of the turn's last token; None where the next turn comes first, or the text ends."""
        end = text.find(self.ends, start) if self.ends else -1
        if end < 0 or (self.begins and self.begins in text[start:end]):
            return None
        return end + len(self.ends)


def shared_beginning(a: str, b: str) -> str:
    """The beginning that two texts share."""
    return a[: next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))]


def put_marks(text: str, spans: list[tuple[int, int]]) -> str:
    """A text with marks around each span."""
    pieces, position = [], 0
    for start, end in spans:
        pieces += [text[position:start], OPEN, text[start:end], CLOSE]
        position = end
    return "".join([*pieces, text[position:]])


def marked_message(message: Message, place: str = "name") -> Message:
    """Marks inside the white space around a text, which templates strip; in a tool call where there is no text."""
    content = message["content"]
    if isinstance(content, list):
        return {**message, "content": [{"type": "text", "text": OPEN}, *content, {"type": "text", "text": CLOSE}]}
    if text := content.strip():
        before, _, after = content.partition(text)
        return {**message, "content": f"{before}{OPEN}{text}{CLOSE}{after}"}
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls and isinstance(calls[0], dict):
        call = calls[0]
        function = call.get("function", call)
        if place == "id" and isinstance(call.get("id"), str):
            return {**message, "tool_calls": [{**call, "id": f"{OPEN}{call['id']}{CLOSE}"}, *calls[1:]]}
        if place == "name" and isinstance(function, dict) and isinstance(function.get("name"), str):
            named = {**function, "name": f"{OPEN}{function['name']}{CLOSE}"}
            call = {**call, "function": named} if "function" in call else named
            return {**message, "tool_calls": [call, *calls[1:]]}
    return {**message, "content": f"{OPEN}{CLOSE}{content}"}
