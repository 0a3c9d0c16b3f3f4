"""Find the token that would begin the next turn, for last answers without an end token of their own.

<|user|>Hi<|assistant|>Hello.<|user|>And? …   GLM's template: generation stops at the token of the next turn
<|user|>Hi<|assistant|>Hello.                 so a last answer has no token to stop at
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from energon_pack.samples.sample import Message
from energon_pack.samples.skip import Skip
from energon_pack.templates.chat.text_marks import MarkLevel, TextOwner, mark_texts, remove_text_marks
from energon_pack.templates.chat.turns import CLOSE, OPEN, SpecialTokens
from energon_pack.templates.settings import FINAL_END_AUTO, FINAL_END_NONE

_QUESTION: Message = {"role": "user", "content": "a"}
#: two calls, whose arguments are objects, or JSON texts
_CALLS = [
    [
        {"id": f"call_000{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for i, name in enumerate("fg")
    ]
    for arguments in ({"x": "y"}, '{"x": "y"}')
]
_RESULT: Message = {"role": "tool", "content": "c", "tool_call_id": "call_0000", "name": "f"}
_ANSWER: Message = {"role": "assistant", "content": "b"}
#: answers that call tools: several or one, with a text or without; a template may refuse some of them
_CALLING: list[Message] = [
    {"role": "assistant", "content": content, "tool_calls": calls[:num]}
    for calls in _CALLS
    for num in (2, 1)
    for content in ("", "b")
]


@dataclass(frozen=True)
class LastAnswerEnd:
    """What a chat template writes behind an answer that ends a conversation."""

    has_end: bool  # a special token that ends it
    next_token: str  # the token that would begin the next turn; empty: no special token does

    @property
    def token_added_by_auto(self) -> str:
        """The token that `labels.final_end=auto` adds; empty: none."""
        return "" if self.has_end else self.next_token


class TextAndCallAnswerEnds:
    """Last answers by one chat template: those that only say something, and those that call tools."""

    def __init__(self, render: Callable[..., str], special: SpecialTokens):
        """Render a conversation that ends with each, with and without a next turn; `render`: `Renderer.render`."""
        self._text = _last_answer_end(render, special, [_ANSWER], _QUESTION)
        self._call = _last_answer_end(render, special, _CALLING, _RESULT)
        if self._text is not None and not self._text.has_end and self._call is not None and self._call.next_token:
            self._call = LastAnswerEnd(False, self._call.next_token)  # tokens behind a call, too, only close the call

    def added_tokens(self, final_end: str) -> list[str]:
        """Return the tokens that a value of `labels.final_end` adds, by form of answer; empty list: it adds none."""
        ends = [self.end_token_to_add(final_end, has_calls) for has_calls in (False, True)]
        return ends if any(ends) else []

    def end_token_to_add(self, final_end: str, has_calls: bool) -> str:
        """Return the token that a value of `labels.final_end` adds behind a last answer; empty: none."""
        if final_end != FINAL_END_AUTO:
            return final_end if final_end != FINAL_END_NONE else ""
        answer = self._call if has_calls else self._text
        return "" if answer is None else answer.token_added_by_auto

    def have_ends(self, final_end: str) -> bool:
        """Say whether each last answer that the template takes has an end, with the token that `final_end` adds."""
        return all(
            answer is None or answer.has_end or self.end_token_to_add(final_end, has_calls)
            for answer, has_calls in ((self._text, False), (self._call, True))
        )


def add_end(marked: str, weights: Sequence[float], token: str, weight: float) -> tuple[str, list[float]]:
    """Add a trained token behind a marked text; return it with the weights of its spans.

    The last answer's span is widened over white space before the token, as where a next turn follows.
    """
    before, mark, after = marked.rpartition(CLOSE)
    if mark and weights[-1] == weight and not after.strip():
        return f"{before}{after}{token}{CLOSE}", [*weights]
    return f"{marked}{OPEN}{token}{CLOSE}", [*weights, weight]


def ends_with_token(marked_text: str, token: str) -> bool:
    """Say whether a marked text ends with a token, in front of white space and a mark."""
    return marked_text.rstrip().removesuffix(CLOSE).rstrip().endswith(token)


def _last_answer_end(
    render: Callable[..., str], special: SpecialTokens, answers: Sequence[Message], following: Message
) -> LastAnswerEnd | None:
    """Return what the template writes behind the first of these answers that it takes; None: it takes none of them."""
    for answer in answers:
        (marked, next_turn), leaves = mark_texts([answer, following], MarkLevel.ALL)
        try:
            text, places = _read_first_marks(render([_QUESTION, marked], None), leaves)
        except Skip:
            continue
        if not any((owner.call is not None) == ("tool_calls" in answer) for _, owner in places):
            continue  # it leaves the answer out, or its calls
        after = text[places[-1][0] :]
        inside = [text[one:other] for (one, a), (other, b) in pairwise(places) if (a.call, b.call) == (0, 1)]
        has_end = bool(special.all(after) - special.all("".join(inside)))
        try:
            text, places = _read_first_marks(render([_QUESTION, marked, next_turn], None), leaves)
        except Skip:
            return LastAnswerEnd(has_end, "")
        number = next((number for number, (_, owner) in enumerate(places) if owner.message), 0)
        between = text[places[number - 1][0] : places[number][0]] if number else ""
        stem = after.rstrip()
        return LastAnswerEnd(has_end, special.token_at(between, len(stem)) if between.startswith(stem) else "")
    return None


def _read_first_marks(output: str, leaves: Sequence[TextOwner]) -> tuple[str, list[tuple[int, TextOwner]]]:
    """Return a rendered text without its marks, and where each marked text first begins and ends, with its owner."""
    written, times, places = remove_text_marks(output), Counter[int](), []
    for mark in written.marks:
        times[mark.leaf] += 1
        if times[mark.leaf] <= 2:  # a call's name may stand beside its result, too
            places.append((mark.position, leaves[mark.leaf]))
    return written.text, places
