"""Find the trained parts of a rendered conversation: in each chosen turn, the text that the model must write itself.

    the output of the template's own `{% generation %}`, with the token that ends the turn
    else the text from the turn's header to its end, around the marks of its texts (`text_marks`), checked by the next
    else the result of prefix rendering (`turns`)

If none of these works for a turn, the sample is left out: Skip.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

from energon_pack.samples.sample import Message
from energon_pack.samples.skip import Reason, Skip
from energon_pack.templates.chat.labels import Parts, PartSpanFinder
from energon_pack.templates.chat.renderer import index_of_last_question
from energon_pack.templates.chat.text_marks import (
    MarkedConversation,
    MarkLevel,
    TextAndMarks,
    TextOwner,
    mark_texts,
    remove_text_marks,
)
from energon_pack.templates.chat.turns import (
    PrefixSpanFinder,
    Span,
    SpecialTokens,
    TurnForm,
    pattern_of,
    shared_beginning,
)

_NO_PARTS: Parts = {}


class _MessageSegment(NamedTuple):
    """The stretch of a rendered text that holds consecutive texts of one message."""

    message: int
    first: int
    last: int
    leaf: int  # the last of these texts


class SpanFinder:
    """Finds which characters of a rendered conversation are trained, for one chat template."""

    def __init__(self, render: Callable[..., str], turn: TurnForm, special: SpecialTokens, has_generation_blocks: bool):
        """Store the functions and texts of one chat template.

        Args:
            render: `Renderer.render` of the template; raises Skip.
            has_generation_blocks: whether the template has `{% generation %}` blocks.
        """
        self._render, self._turn, self._special, self._has_blocks = render, turn, special, has_generation_blocks
        self._prefix_rendering = PrefixSpanFinder(render, turn, special)
        self._parts = PartSpanFinder(self._marked, turn)

    def find(
        self,
        messages: Sequence[Message],
        tools: Any,
        plain: str,
        trained: Sequence[int],
        with_calls: bool = True,
        parts: Parts = _NO_PARTS,
    ) -> list[Span]:
        """Return the trained spans of some turns, ascending; raises Skip if a turn or a tool call can't be found.

        Args:
            plain: the conversation as rendered without marks.
            trained: the indices of the messages that are trained.
            with_calls: whether tool calls are trained, too.
            parts: the weights of the parts of turns that have several, by the index of the message.
        """
        incomplete: MarkedConversation | None = None  # its marks show the texts of all turns, but not all calls
        for level in MarkLevel:
            marked = self._marked(messages, tools, level)
            if marked is None or marked.text != plain or _is_written_twice(marked.written):
                continue
            written = {leaf for _, leaf in marked.marks_and_text_owners}
            if not {*trained} <= {leaf.message for leaf in written}:
                continue
            if _calls(messages) <= written:
                spans = self._spans_of_marks(marked, trained)
                return spans if with_calls and not parts else self._parts.cut(marked, spans, with_calls, parts)
            incomplete = incomplete or marked
        proved = [self._span_by_prefixes(messages, tools, plain, i) for i in trained if incomplete is None]
        spans = _ascending_spans(proved) if incomplete is None else self._spans_of_marks(incomplete, trained)
        for span in spans:
            if span.message in parts or (not with_calls and _shows_calls(messages[span.message], plain, span)):
                problem = f"the chat template changes message {span.message}, whose parts have weights of their own"
                raise Skip(Reason.PROCESSOR_ERROR, f"{problem}: no place of a part can be found")
        return spans

    def _spans_of_marks(self, marked: MarkedConversation, trained: Sequence[int]) -> list[Span]:
        is_told = self._has_blocks and marked.written.generation_blocks
        return self._spans_of_blocks(marked, trained) if is_told else self._spans_by_text_marks(marked, trained)

    def _marked(self, messages: Sequence[Message], tools: Any, level: MarkLevel) -> MarkedConversation | None:
        """Render a conversation with marks; None: the template refuses it, because names or ids need a certain form."""
        marked, leaves = mark_texts(messages, level)
        try:
            written = remove_text_marks(self._render(marked, tools, marks=True))
        except Skip:
            return None
        return MarkedConversation(messages, tools, _drop_repeated_call_marks(written, leaves), leaves, level)

    # ------------------------------------------------------------------------------------- the template's own blocks

    def _spans_of_blocks(self, marked: MarkedConversation, trained: Sequence[int]) -> list[Span]:
        """Return the trained spans: answers by the template's `{% generation %}` blocks, other turns by marks."""
        questions = [i for i in trained if marked.messages[i]["role"] != "assistant"]
        answers = [i for i, message in enumerate(marked.messages) if message["role"] == "assistant"]
        positions = [mark.position for mark in marked.written.marks]
        messages = [leaf.message for _, leaf in marked.marks_and_text_owners]
        is_answer = {*answers}
        spans = []
        for start, end in marked.written.generation_blocks:
            first, last = bisect_left(positions, start), bisect_right(positions, end)
            # A neighbour's text may touch the block with one edge; its own texts are inside with both edges.
            touched = [i for i, _ in Counter(messages[first:last]).most_common() if i in is_answer]
            before = messages[first - 1] if first else -1
            owner = next(iter(touched), next((i for i in answers if i > before), -1))
            if owner in trained:
                spans.append(Span(start, self._end_with_stop_token(marked.text, start, end), owner))
        return _ascending_spans([*spans, *self._spans_by_text_marks(marked, questions)])

    def _end_with_stop_token(self, text: str, start: int, end: int) -> int:
        """Return the end of a block, moved behind the token that ends its turn if the block leaves that out."""
        ends = self._turn.end_text
        stop = end
        while stop < len(text) and text[stop].isspace():
            stop += 1
        if not ends or text[start:end].rstrip().endswith(ends) or not text.startswith(ends, stop):
            return end
        return stop + len(ends)

    # ----------------------------------------------------------------------------------------------- marks of texts

    def _spans_by_text_marks(self, marked: MarkedConversation, trained: Sequence[int]) -> list[Span]:
        spans, doubts = self._spans_around_texts(marked, {*trained})
        question = index_of_last_question(marked.messages)
        for i, turn_spans in spans.items():
            if marked.messages[i]["role"] == "assistant":
                proved = self._corrected_span(marked, i, question, turn_spans, i in doubts)
                spans[i] = turn_spans if proved is None else [proved]
        return _ascending_spans([span for turn_spans in spans.values() for span in turn_spans])

    def _spans_around_texts(
        self, marked: MarkedConversation, trained: set[int]
    ) -> tuple[dict[int, list[Span]], set[int]]:
        """Return the spans of turns around their marked texts, and the turns that lack a header or an end."""
        text, doubts = marked.text, set[int]()
        spans: dict[int, list[Span]] = {}
        segments = _message_segments(marked)
        is_bare = not self._turn.headers and not self._turn.has_prompt
        for number, (i, first, last, _) in enumerate(segments):
            if i not in trained:
                continue
            previous = segments[number - 1].last if number else 0
            following = segments[number + 1].first if number + 1 < len(segments) else len(text)
            is_answer = marked.messages[i]["role"] == "assistant"
            start = self._turn.begin(text, previous, first) if is_answer else first
            if start is None:
                # Gemma 4 writes answers in a row as one turn: the second begins where the first ends.
                follows_answer = number > 0 and marked.messages[segments[number - 1].message]["role"] == "assistant"
                goes_on = follows_answer and not text[previous:first].strip()
                has_space = self._turn.leading_space or goes_on
                start = previous + len(text[previous:first].rstrip()) if has_space else first
                doubts |= set() if is_bare or goes_on or i in spans else {i}
            end = self._turn.end(text, last, following)
            if end is None and is_answer:
                end = self._end_of_turn_without_token(marked, segments[number], following)
                doubts |= {i} if end is None else set()
            spans.setdefault(i, []).append(Span(start, last if end is None else end, i))
        return spans, doubts

    def _end_of_turn_without_token(
        self, marked: MarkedConversation, segment: _MessageSegment, following: int
    ) -> int | None:
        """Return where a turn without an end token ends, by rendering it without later turns; None: unknown."""
        closing = marked.text[segment.last : following]
        if following == len(marked.text):
            return self._prefix_rendering.end_of_generation(marked.text, segment.last + len(closing.rstrip()))
        alone = self._marked(marked.messages[: segment.message + 1], marked.tools, marked.level)
        here = [mark.position for mark in alone.written.marks if mark.leaf == segment.leaf] if alone else []
        if alone is None or not here:
            return None
        stop = next((mark.position for mark in alone.written.marks if mark.position > here[-1]), len(alone.text))
        shared = shared_beginning(closing, alone.text[here[-1] : stop])
        length = len(shared[: self._special.start_of_cut_token(closing, len(shared))].rstrip())
        return self._prefix_rendering.end_of_generation(marked.text, segment.last + length)

    def _corrected_span(
        self, marked: MarkedConversation, i: int, question: int, turn_spans: list[Span], in_doubt: bool
    ) -> Span | None:
        """Return the span of a turn by prefix rendering if it differs from the spans by marks; None: these are right.

        Turns of a pattern that was compared once are not rendered again.
        """
        pattern = pattern_of(marked.messages, i, question)
        is_known, agrees = self._prefix_rendering.recall_comparison(pattern)
        if is_known and agrees is not False and not in_doubt:
            return None
        span = self._prefix_rendering.span(marked.messages, marked.tools, marked.text, i)
        if span is not None and any(
            span.start < mark.position < span.end and leaf.message != i for mark, leaf in marked.marks_and_text_owners
        ):
            span = None  # the result of a tool is in the same turn
        agrees = self._prefix_rendering.compare_and_remember(pattern, marked.text, turn_spans, span)
        if span is None and in_doubt:
            problem = f"the chat template does not show where what is trained of message {i} begins or ends"
            raise Skip(Reason.PROCESSOR_ERROR, problem)
        return span if agrees is False else None

    def _span_by_prefixes(self, messages: Sequence[Message], tools: Any, text: str, i: int) -> Span:
        """Return the span of a turn by prefix rendering alone, for a template that changes texts; raises Skip."""
        span = self._prefix_rendering.span(messages, tools, text, i)
        if span is None or messages[i]["role"] != "assistant" or not self._turn.headers:
            raise Skip(Reason.PROCESSOR_ERROR, "the chat template changes assistant text; no labels can be found")
        return span


def _is_written_twice(written: TextAndMarks) -> bool:
    """Say whether a text of the conversation stands in two places of the output, so that its marks show nothing."""
    return any(number > 2 for number in Counter(mark.leaf for mark in written.marks).values())


def _drop_repeated_call_marks(written: TextAndMarks, leaves: Sequence[TextOwner]) -> TextAndMarks:
    """Drop the marks of repeated parts of tool calls, such as a call's name beside its result."""
    times = Counter[int]()
    marks = []
    for mark in written.marks:
        times[mark.leaf] += 1
        if leaves[mark.leaf].call is None or times[mark.leaf] <= 2:
            marks.append(mark)
    return written if len(marks) == len(written.marks) else replace(written, marks=marks)


def _calls(messages: Sequence[Message]) -> set[TextOwner]:
    """Return all tool calls of a conversation, by message and number."""
    return {
        TextOwner(i, number)
        for i, message in enumerate(messages)
        if isinstance(calls := message.get("tool_calls"), list)
        for number in range(len(calls))
    }


def _shows_calls(message: Message, text: str, span: Span) -> bool:
    """Say whether the text of a turn holds the name of one of its calls."""
    names = [(call.get("function") or call).get("name") for call in message.get("tool_calls") or ()]
    return any(isinstance(name, str) and name in text[span.start : span.end] for name in names)


def _message_segments(marked: MarkedConversation) -> list[_MessageSegment]:
    segments: list[_MessageSegment] = []
    for mark, leaf in marked.marks_and_text_owners:
        if segments and segments[-1].message == leaf.message:
            segments[-1] = segments[-1]._replace(last=mark.position, leaf=mark.leaf)
        else:
            segments.append(_MessageSegment(leaf.message, mark.position, mark.position, mark.leaf))
    return segments


def _ascending_spans(spans: list[Span]) -> list[Span]:
    """Return spans in ascending order; raises Skip if two overlap."""
    spans = sorted(spans)
    for one, other in pairwise(spans):
        if other.start < one.end:
            problem = (
                f"what is trained of messages {one.message} and {other.message} overlaps in the chat template's text"
            )
            raise Skip(Reason.PROCESSOR_ERROR, problem)
    return spans
