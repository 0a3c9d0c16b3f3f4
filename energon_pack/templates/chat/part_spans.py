"""Cut the spans of turns into parts that count differently: calls that are not trained, and joined turns.

    I look.<tool_call>\n{"name": "tide_at", …}\n</tool_call><|im_end|>
    ─ 0.5 ─────────────────────────── 1 ───────────────────────────

The text around a call belongs to the call. The end of a turn belongs to its last part, even to a call that
`labels.tool_calls` masks.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from energon_pack.samples.weights import PartWeights
from energon_pack.templates.chat.renderer import last_question
from energon_pack.templates.chat.text_marks import MarkedConversation, TextEdge, TextOwner
from energon_pack.templates.chat.turns import Span, TurnForm, pattern_of, shared_beginning

_MAX_CACHED_LENGTHS = 10_000
#: the weights of the parts of turns that have several, by the index of the message
Parts = Mapping[int, PartWeights]


class PartSpanFinder:
    """Finds the places of the parts of turns, for one chat template."""

    def __init__(self, mark: Callable[..., MarkedConversation | None], turn: TurnForm):
        """Store `mark(messages, tools, level)`, which renders a conversation with marks, and the form of a turn."""
        self._mark, self._turn = mark, turn
        self._before_calls: dict[tuple[Any, ...], int] = {}  # by pattern of turns, and the text before a call's name

    def cut(self, marked: MarkedConversation, spans: Sequence[Span], with_calls: bool, parts: Parts) -> list[Span]:
        """Return the spans in pieces: calls that are not trained, and parts of a turn with weights of their own.

        The text around a call belongs to the call. A turn's end belongs to its last part, trained or not.
        """
        cut: list[Span] = []
        owners = [*marked.owners]
        positions = [mark.position for mark, _ in owners]
        for span in spans:
            weights = parts.get(span.message)
            inside = [
                (mark, leaf, _weight_of(leaf, weights), with_calls or leaf.call is None)
                for mark, leaf in owners[bisect_left(positions, span.start) : bisect_right(positions, span.end)]
                if leaf.message == span.message and (weights is None or leaf.call is not None or weights.texts)
            ]
            if not inside or (weights is None and all(is_trained for *_, is_trained in inside)):
                cut.append(span)
                continue
            start, weight = span.start, inside[0][2]
            previous: TextEdge | None = None
            for mark, leaf, own, is_trained in inside:
                following = own if is_trained else 0.0
                if following != weight:
                    edge = self._start_of_part(marked, span, previous, mark, leaf.call)
                    cut.append(span._replace(start=start, end=edge, weight=weight))
                    start, weight = edge, following
                previous = mark
            if weight != (last := inside[-1][2]):
                ends = self._turn.end_text
                edge = span.end - (len(ends) if marked.text.endswith(ends, span.start, span.end) else 0)
                cut.append(span._replace(start=start, end=edge, weight=weight))
                start, weight = edge, last
            cut.append(span._replace(start=start, weight=weight))
        return [span for span in cut if span.start < span.end]

    def _start_of_part(
        self, marked: MarkedConversation, span: Span, previous: TextEdge | None, first: TextEdge, call: int | None
    ) -> int:
        """Return where a part begins: a call where its turn differs from the same turn without it and later ones.

        Args:
            previous: the mark before the part; None: there is none in the span.
            first: the first mark of the part.
            call: the number of the call in its turn; None: the part is a text, with the white space before it.
        """
        start = previous.position if previous else span.start
        if call is None:
            return start if marked.text[start : first.position].isspace() else first.position
        pattern = pattern_of(marked.messages, span.message, last_question(marked.messages))
        key = (pattern, marked.level, bool(previous), bool(call), marked.text[start : first.position])
        if key not in self._before_calls:
            if len(self._before_calls) >= _MAX_CACHED_LENGTHS:
                self._before_calls.clear()
            self._before_calls[key] = self._length_before_call(marked, span, previous, first.position, call)
        return start + self._before_calls[key]

    def _length_before_call(
        self, marked: MarkedConversation, span: Span, previous: TextEdge | None, name: int, number: int
    ) -> int:
        """Return how many characters after `previous`, or after the span's start, a call begins."""
        start = previous.position if previous else span.start
        message = marked.messages[span.message]
        silent = {key: value for key, value in message.items() if key != "tool_calls"}
        if number:
            silent["tool_calls"] = message["tool_calls"][:number]
        alone = self._mark([*marked.messages[: span.message], silent], marked.tools, marked.level)
        ends = (
            [mark.position for mark in alone.written.marks if previous and mark.leaf == previous.leaf] if alone else []
        )
        if alone is None or (previous and not ends):
            return 0
        shared = shared_beginning(marked.text[start:name], alone.text[ends[-1] if ends else start :])
        edges = (end for end in range(len(shared), 0, -1) if shared[end - 1].isspace() or shared[end - 1] in ">]})")
        return next(edges, 0)


def _weight_of(leaf: TextOwner, weights: PartWeights | None) -> float | None:
    """Return the weight of a text of a turn; None: it is that of the whole turn."""
    if weights is None:
        return None
    return weights.texts[min(leaf.part, len(weights.texts) - 1)] if leaf.call is None else weights.calls[leaf.call]
