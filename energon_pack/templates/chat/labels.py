"""Choose the trained turns, apply `labels.*` to their text, and cut it into parts that count differently. Pure.

`adjust_spans` applies settings to a turn:

    Assistant turn   <think>\nhm\n</think>\n\nThe answer.<|im_end|>\n
    think=mask       ───── not trained ──────
    end_of_turn=false                           not trained
    after_turn=true                                       trained, too

`PartSpanFinder` cuts a turn into its text and its calls, each with its own weight:

    I look.<tool_call>\n{"name": "tide_at", …}\n</tool_call><|im_end|>
    ─ 0.5 ─────────────────────────── 1 ───────────────────────────

The text around a call belongs to the call. The end of a turn belongs to its last part, even to a call that
`labels.tool_calls` masks.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from energon_pack.samples.sample import REASONING_KEYS, Message
from energon_pack.samples.turns import with_empty_answers_untrained
from energon_pack.samples.weights import (
    PART_WEIGHTS,
    PartWeights,
    has_weight,
    has_zero_weight,
    turn_weight,
    weights_of_parts,
)
from energon_pack.templates.chat.renderer import index_of_last_question
from energon_pack.templates.chat.text_marks import MarkedConversation, TextEdge, TextOwner
from energon_pack.templates.chat.turns import Span, SpecialTokens, TurnForm, pattern_of, shared_beginning
from energon_pack.templates.settings import EmptyAnswerPolicy, LabelSettings, Think, TrainOn

Range = tuple[int, int]


class TrainedSpan(NamedTuple):
    """A range of trained characters in a text, and its loss weight."""

    start: int
    end: int
    weight: float


class ThinkMarks(NamedTuple):
    """The texts that a template writes before and after a thought, such as `<think>`, without white space."""

    opening: str
    closing: str


def adjust_spans(
    text: str,
    spans: Iterable[TrainedSpan],
    labels: LabelSettings,
    turn_form: TurnForm,
    special: SpecialTokens,
    think_marks: ThinkMarks,
) -> list[TrainedSpan]:
    """Cut or widen the spans of trained turns as `labels` says; return the trained spans of weight > 0, ascending."""
    spans = list(spans)
    turns = spans
    if labels.after_turn:
        starts = [*(span.start for span in spans[1:]), len(text)][: len(spans)]
        ends_of = [_end_with_following_text(text, span.end, turn_form, special) for span in spans]
        turns = spans = [
            span._replace(end=min(end, start)) for span, end, start in zip(spans, ends_of, starts, strict=True)
        ]
    if not labels.end_of_turn:
        ends = [re.escape(end) for end in (turn_form.end_text,) if end]
        pattern = re.compile(rf"(?:{'|'.join(ends) or '(?!)'})\s*$")
        spans = [span._replace(end=_end_without_end_token(pattern, text, span)) for span in spans]
    if labels.think in (Think.mask, Think.mask_empty):
        only_empty = labels.think is Think.mask_empty
        holes = [hole for span in _whole_turns(spans) for hole in _thoughts(text, span, think_marks, only_empty)]
        spans = cut_ranges_out(spans, holes)
    if labels.prompt_weight:
        ends_of = [0, *(position for span in turns for position in span[:2]), len(text)]
        gaps = zip(ends_of[::2], ends_of[1::2], strict=True)
        spans = sorted([*spans, *(TrainedSpan(*gap, labels.prompt_weight) for gap in gaps)])
    return [span for span in spans if span.start < span.end and span.weight]


def turn_weights(messages: Sequence[Message], labels: LabelSettings) -> dict[int, float]:
    """Return the loss weights of the trained turns, by the index of the message.

    With `labels.prompt_weight`, also turns to which the sample itself gives weight 0, and empty answers.
    """
    if labels.empty is EmptyAnswerPolicy.drop:
        messages = with_empty_answers_untrained(messages)
    train_on, with_zeros = labels.train_on, labels.prompt_weight > 0
    answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    last = answers[-1] if answers else -1
    if max(map(len, messages), default=0) < 3 or not any(map(has_weight, messages)):
        return dict.fromkeys(answers if train_on is TrainOn.all else answers[-1:], 1.0)
    chosen = (train_on is TrainOn.all or i == last for i in range(len(messages)))
    weights = [turn_weight(message, is_chosen) for message, is_chosen in zip(messages, chosen, strict=True)]
    told = (with_zeros and has_zero_weight(message) for message in messages)
    return {i: weight for i, (weight, is_zero) in enumerate(zip(weights, told, strict=True)) if weight or is_zero}


def part_weights_by_message(messages: Sequence[Message], train_on: TrainOn) -> dict[int, PartWeights]:
    """Return the loss weights of the parts of turns that have several, by the index of the message."""
    if not any(PART_WEIGHTS in message for message in messages):
        return {}
    last = max(i for i, message in enumerate(messages) if message["role"] == "assistant")
    return {
        i: weights_of_parts(message, train_on is TrainOn.all or i == last)
        for i, message in enumerate(messages)
        if PART_WEIGHTS in message
    }


def weight_of_last_answer_end(messages: Sequence[Message], labels: LabelSettings) -> float:
    """Return the loss weight of the end of a last answer, which is that of its last part; 0: it is not trained."""
    last = len(messages) - 1
    if messages[last]["role"] != "assistant" or not labels.end_of_turn:
        return 0.0
    if parts := part_weights_by_message(messages, labels.train_on).get(last):
        return (parts.calls or parts.texts)[-1]
    return turn_weights(messages, labels).get(last, 0.0)


def cut_ranges_out(spans: Iterable[TrainedSpan], holes: Sequence[Range]) -> list[TrainedSpan]:
    """Cut ranges (`holes`) out of spans; return the parts that remain. Spans and holes ascend."""
    rest: list[TrainedSpan] = []
    passed = 0
    for start, end, weight in spans:
        while passed < len(holes) and holes[passed][1] <= start:
            passed += 1
        for number in range(passed, len(holes)):
            first, last = holes[number]
            if first >= end:
                break
            if last <= start:
                continue
            if start < first:
                rest.append(TrainedSpan(start, first, weight))
            start = last
        if start < end:
            rest.append(TrainedSpan(start, end, weight))
    return rest


def without_earlier_thoughts(messages: Sequence[Message], think: ThinkMarks) -> list[Message]:
    """Return the messages; the assistant's before the user's last one lose their reasoning and thoughts."""
    last = index_of_last_question(messages)

    def silent(message: Message) -> Message:
        new = {key: value for key, value in message.items() if key not in REASONING_KEYS}
        content = message["content"]
        if isinstance(content, str):
            return {**new, "content": _text_without_thought(content, think)}
        parts = (
            {**part, "text": _text_without_thought(part["text"], think)} if "text" in part else part for part in content
        )
        return {**new, "content": [*parts]}

    return [silent(m) if i < last and m["role"] == "assistant" else m for i, m in enumerate(messages)]


def _text_without_thought(text: str, think: ThinkMarks) -> str:
    """Return a text without its first thought and the white space around that."""
    start = text.find(think.opening)
    last = text.find(think.closing, start + len(think.opening)) if start >= 0 else -1
    return text if last < 0 else text[:start].rstrip() + text[last + len(think.closing) :].lstrip()


def _end_with_following_text(text: str, end: int, turn: TurnForm, special: SpecialTokens) -> int:
    """Return the end of a turn with the text that the template writes after it: white space, or all the rest."""
    if not turn.end_text or turn.ends_at_next_turn:
        return end
    if special.are_all(text, end):
        return len(text)
    while end < len(text) and text[end].isspace():
        end += 1
    return end


def _end_without_end_token(end_of_turn: re.Pattern[str], text: str, span: TrainedSpan) -> int:
    match = end_of_turn.search(text[span.start : span.end])
    return span.end if match is None else span.start + match.start()


def _whole_turns(spans: Iterable[TrainedSpan]) -> list[TrainedSpan]:
    """Join spans that touch, the parts of a turn: a thought may be of several parts."""
    whole: list[TrainedSpan] = []
    for span in spans:
        if whole and whole[-1].end == span.start:
            whole[-1] = whole[-1]._replace(end=span.end)
        else:
            whole.append(span)
    return whole


def _thoughts(text: str, span: TrainedSpan, think: ThinkMarks, only_empty: bool) -> Iterator[Range]:
    """Yield the ranges of the thoughts in a span, with their marks and the white space after them."""
    start, position = -1, span.start
    before = span.start
    while before and text[before - 1].isspace():
        before -= 1
    if text.endswith(think.opening, 0, before):  # the prompt opened a thought
        start = span.start
    while True:
        if start < 0:
            start = text.find(think.opening, position, span.end)
            if start < 0:
                return
            position = start + len(think.opening)
        last = text.find(think.closing, position, span.end)
        if last < 0:
            return
        end = last + len(think.closing)
        while end < span.end and text[end].isspace():
            end += 1
        if not only_empty or not text[position:last].strip():
            yield start, end
        start, position = -1, end


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
        owners = [*marked.marks_and_text_owners]
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
        pattern = pattern_of(marked.messages, span.message, index_of_last_question(marked.messages))
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
