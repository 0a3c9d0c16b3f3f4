"""What of a rendered conversation is trained: of each chosen turn, what the model has to write itself.

    what the template's own `{% generation %}` names, with the token that ends the turn
    else from the header of the turn to its end, around the marks of its texts (`leaves`)
      checked by prefix rendering: what follows the conversation before it, with the prompt, up to its own end
    else what prefix rendering says

A turn for which neither tells is no sample to train on: Skip.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

from energon_pack.samples.sample import Message
from energon_pack.samples.skip import Reason, Skip
from energon_pack.templates.chat.leaves import Leaf, Level, Mark, Written, mark_leaves, read_marks
from energon_pack.templates.chat.left_out import REMEDY
from energon_pack.templates.chat.turns import SpecialTokens, Turn, shared_beginning

_MOST_PATTERNS = 10_000


class Span(NamedTuple):
    """Characters that are trained."""

    start: int
    end: int
    message: int


class _Segment(NamedTuple):
    """Where texts of one message stand in a row."""

    message: int
    first: int
    last: int
    leaf: int  # the one at its end


class Spans:
    """Finds what is trained in the output of one template."""

    def __init__(self, render: Callable[..., str], turn: Turn, special: SpecialTokens, generates: bool):
        """Set the template.

        Args:
            render: of messages, tools, and as keywords `prompt` and `marks`, whether to mark what
                `{% generation %}` writes; raises Skip.
            generates: whether the template has such blocks.
        """
        self._render = render
        self._turn = turn
        self._special = special
        self._generates = generates
        self._agrees: dict[tuple[Any, ...], bool | None] = {}  # of a pattern of turns; None: prefixes tell nothing

    def find(
        self, messages: Sequence[Message], tools: Any, plain: str, trained: Sequence[int], with_calls: bool = True
    ) -> list[Span]:
        """The spans of these turns, ascending.

        Args:
            plain: the conversation as the template writes it.
            trained: numbers of messages.
            with_calls: whether tool calls are trained.

        Raises:
            Skip: `processor_error` where a turn or a tool call can't be found.
        """
        leaves_out_calls = False
        for level in Level:
            marked, leaves = mark_leaves(messages, level)
            try:
                written = _first_of_calls(read_marks(self._render(marked, tools, marks=True)), leaves)
            except Skip:  # it wants a name or an id of a certain form
                continue
            if written.text != plain or any(number > 2 for number in Counter(m.leaf for m in written.marks).values()):
                continue
            there = {leaves[mark.leaf] for mark in written.marks}
            if not _calls(messages) <= there:
                leaves_out_calls = True
                continue
            if not {*trained} <= {leaf.message for leaf in there}:
                continue
            if self._generates and written.generated:
                spans = self._of_generation(messages, written, leaves, trained)
                others = [i for i in trained if messages[i]["role"] != "assistant"]  # blocks name answers alone
                spans = _apart([*spans, *self._of_leaves(messages, tools, written, leaves, level, others)])
            else:
                spans = self._of_leaves(messages, tools, written, leaves, level, trained)
            return spans if with_calls else self._without_calls(messages, tools, written, leaves, level, spans)
        if leaves_out_calls:
            raise Skip(Reason.PROCESSOR_ERROR, f"the chat template leaves out tool calls {REMEDY}")
        return [self._proved(messages, tools, plain, i, []) for i in trained]

    # ------------------------------------------------------------------------------------- the template's own blocks

    def _of_generation(
        self, messages: Sequence[Message], written: Written, leaves: Sequence[Leaf], trained: Sequence[int]
    ) -> list[Span]:
        answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        spans = []
        for start, end in written.generated:
            inside = Counter(leaves[mark.leaf].message for mark in written.marks if start <= mark.position <= end)
            before = max((leaves[mark.leaf].message for mark in written.marks if mark.position < start), default=-1)
            # Of a neighbour's text an edge may touch the block; of its own, both are inside.
            touched = [i for i, _ in inside.most_common() if i in answers]
            owner = next(iter(touched), next((i for i in answers if i > before), -1))
            if owner in trained:
                spans.append(Span(start, self._with_stop(written.text, start, end), owner))
        return _apart(spans)

    def _with_stop(self, text: str, start: int, end: int) -> int:
        """The end of a block, with the token that ends its turn where the block leaves that out."""
        ends = self._turn.ends
        stop = end
        while stop < len(text) and text[stop].isspace():
            stop += 1
        if not ends or text[start:end].rstrip().endswith(ends) or not text.startswith(ends, stop):
            return end
        return stop + len(ends)

    # ----------------------------------------------------------------------------------------------- marks of texts

    def _of_leaves(
        self,
        messages: Sequence[Message],
        tools: Any,
        written: Written,
        leaves: Sequence[Leaf],
        level: Level,
        trained: Sequence[int],
    ) -> list[Span]:
        text, spans, doubts = written.text, list[Span](), set[int]()
        segments = _segments(written, leaves)
        for number, segment in enumerate(segments):
            i = segment.message
            if i not in trained:
                continue
            previous = segments[number - 1].last if number else 0
            following = segments[number + 1].first if number + 1 < len(segments) else len(text)
            is_answer = messages[i]["role"] == "assistant"
            start = self._turn.begin(text, previous, segment.first) if is_answer else segment.first
            if start is None:
                has_lead = is_answer and self._turn.lead
                start = previous + len(text[previous : segment.first].rstrip()) if has_lead else segment.first
                is_bare = not self._turn.headers and not self._turn.has_prompt
                doubts |= set() if is_bare or any(span.message == i for span in spans) else {i}
            end = self._turn.end(text, segment.last, following)
            if end is None and is_answer:
                end = self._end_without_token(messages, tools, written, segment, following, level)
                doubts |= {i} if end is None else set()
            spans.append(Span(start, segment.last if end is None else end, i))
        for i in trained:
            if messages[i]["role"] == "assistant":
                own = [span for span in spans if span.message == i]
                proved = self._checked(messages, tools, text, i, own, i in doubts, written, leaves)
                if proved is not None:
                    spans = [span for span in spans if span.message != i] + [proved]
        return _apart(spans)

    def _end_without_token(
        self, messages: Sequence[Message], tools: Any, written: Written, segment: _Segment, following: int, level: Level
    ) -> int | None:
        """Where a turn ends that has not the end of all turns: as far as it goes without the turns after it."""
        text = written.text
        closing = text[segment.last : following]
        if following == len(text):
            length = len(closing.rstrip())
        else:
            shorter, _ = mark_leaves(messages[: segment.message + 1], level)
            try:
                alone = read_marks(self._render(shorter, tools, marks=True))
            except Skip:
                return None
            here = [mark.position for mark in alone.marks if mark.leaf == segment.leaf]
            if not here:
                return None
            stop = next((mark.position for mark in alone.marks if mark.position > here[-1]), len(alone.text))
            shared = shared_beginning(closing, alone.text[here[-1] : stop])
            length = len(shared[: self._special.whole(closing, len(shared))].rstrip())
        end = segment.last + length
        return self._next_turn(text, end)

    def _next_turn(self, text: str, end: int) -> int:
        """The end of a turn, with the token that begins the next one where generation stops at it."""
        token = self._special.at(text, end) if self._turn.is_next else ""
        return text.index(token, end) + len(token) if token else end

    # ------------------------------------------------------------------------------------------------- tool calls

    def _without_calls(
        self,
        messages: Sequence[Message],
        tools: Any,
        written: Written,
        leaves: Sequence[Leaf],
        level: Level,
        spans: Sequence[Span],
    ) -> list[Span]:
        """The spans without tool calls: from where a turn differs from one without them, to the end of the turn."""
        left: list[Span] = []
        for span in spans:
            inside = [mark for mark in written.marks if span.start <= mark.position <= span.end]
            calls = [mark for mark in inside if leaves[mark.leaf].call is not None]
            if not calls:
                left.append(span)
                continue
            first = self._begin_of_calls(messages, tools, written, leaves, level, span, calls[0])
            text = written.text[span.start : span.end]
            ends = self._turn.ends if text.endswith(self._turn.ends) else ""
            after = next((mark.position for mark in inside if mark.position > calls[-1].position), span.end - len(ends))
            left += [span._replace(end=first), span._replace(start=after)]
        return [span for span in left if span.start < span.end]

    def _begin_of_calls(
        self,
        messages: Sequence[Message],
        tools: Any,
        written: Written,
        leaves: Sequence[Leaf],
        level: Level,
        span: Span,
        call: Mark,
    ) -> int:
        i = span.message
        before = [mark for mark in written.marks if span.start <= mark.position <= call.position and mark != call]
        before = [mark for mark in before if leaves[mark.leaf].call is None]
        start = before[-1].position if before else span.start
        silent = {key: value for key, value in messages[i].items() if key != "tool_calls"}
        shorter, _ = mark_leaves([*messages[:i], silent], level)
        try:
            alone = read_marks(self._render(shorter, tools, marks=True))
        except Skip:
            return start
        there = [mark.position for mark in alone.marks if before and mark.leaf == before[-1].leaf]
        if not there and before:
            return start
        text, position = written.text, there[-1] if there else start
        shared = shared_beginning(text[start : call.position], alone.text[position:])
        edges = [end for end in range(len(shared), 0, -1) if shared[end - 1].isspace() or shared[end - 1] in ">]|"]
        return start + (edges[0] if edges else 0)

    # --------------------------------------------------------------------------------------------- prefix rendering

    def _checked(
        self,
        messages: Sequence[Message],
        tools: Any,
        text: str,
        i: int,
        own: list[Span],
        in_doubt: bool,
        written: Written,
        leaves: Sequence[Leaf],
    ) -> Span | None:
        """What prefix rendering says of a turn, where it says something else; None: its spans are right."""
        key = _pattern(messages, i)
        known = key in self._agrees
        if known and not in_doubt and self._agrees[key] is not False:
            return None
        span = self._by_prefix(messages, tools, text, i)
        others = (mark for mark in written.marks if leaves[mark.leaf].message != i)
        if span is not None and any(span.start < mark.position < span.end for mark in others):
            span = None  # the result of a tool is in the same turn
        agrees = None if span is None else self._are_same(text, own, span)
        if not known and len(self._agrees) < _MOST_PATTERNS:
            self._agrees[key] = agrees
        if span is None and in_doubt:
            what = f"the chat template does not show where what is trained of message {i} begins or ends"
            raise Skip(Reason.PROCESSOR_ERROR, what)
        return span if agrees is False else None

    def _are_same(self, text: str, own: list[Span], proved: Span) -> bool:
        """Whether spans are what prefix rendering says, but for white space and special tokens at the end."""
        mine = "".join("".join(text[span.start : span.end].split()) for span in own)
        theirs = "".join(text[proved.start : proved.end].split())
        shorter, longer = sorted((mine, theirs), key=len)
        return longer.startswith(shorter) and self._special.are_all(longer[len(shorter) :])

    def _proved(self, messages: Sequence[Message], tools: Any, text: str, i: int, own: list[Span]) -> Span:
        span = self._by_prefix(messages, tools, text, i)
        if span is None or messages[i]["role"] != "assistant" or not self._turn.headers:
            raise Skip(Reason.PROCESSOR_ERROR, "the chat template changes assistant text; no labels can be found")
        for call in messages[i].get("tool_calls") or ():
            names = [call.get("id"), (call.get("function") or call).get("name")] if isinstance(call, dict) else []
            if not any(isinstance(name, str) and name in text[span.start : span.end] for name in names):
                raise Skip(Reason.PROCESSOR_ERROR, f"the chat template leaves out tool calls {REMEDY}")
        return span

    def _by_prefix(self, messages: Sequence[Message], tools: Any, text: str, i: int) -> Span | None:
        """A turn as what is added when its message joins those before; None where that changes those before."""
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
        return Span(len(before) + len(header), self._next_turn(text, end), i)


def _first_of_calls(written: Written, leaves: Sequence[Leaf]) -> Written:
    """The same without the marks of what is written of a call a second time, such as its name beside its result."""
    times = Counter[int]()
    marks = []
    for mark in written.marks:
        times[mark.leaf] += 1
        if leaves[mark.leaf].call is None or times[mark.leaf] <= 2:
            marks.append(mark)
    return written if len(marks) == len(written.marks) else replace(written, marks=marks)


def _calls(messages: Sequence[Message]) -> set[Leaf]:
    """All tool calls of a conversation."""
    return {
        Leaf(i, number)
        for i, message in enumerate(messages)
        if isinstance(calls := message.get("tool_calls"), list)
        for number in range(len(calls))
    }


def _segments(written: Written, leaves: Sequence[Leaf]) -> list[_Segment]:
    segments: list[_Segment] = []
    for mark in written.marks:
        i = leaves[mark.leaf].message
        if segments and segments[-1].message == i:
            segments[-1] = segments[-1]._replace(last=mark.position, leaf=mark.leaf)
        else:
            segments.append(_Segment(i, mark.position, mark.position, mark.leaf))
    return segments


def _apart(spans: list[Span]) -> list[Span]:
    """Spans in their order; raises Skip where two overlap."""
    spans = sorted(spans)
    for one, other in pairwise(spans):
        if other.start < one.end:
            what = f"what is trained of messages {one.message} and {other.message} overlaps in the chat template's text"
            raise Skip(Reason.PROCESSOR_ERROR, what)
    return spans


def _pattern(messages: Sequence[Message], i: int) -> tuple[Any, ...]:
    """What the writing of a turn may depend on, beside its texts: what it and its neighbours hold, and where it is."""
    last_user = max((k for k, message in enumerate(messages) if message["role"] == "user"), default=-1)
    near = (messages[k] if 0 <= k < len(messages) else None for k in (i - 1, i, i + 1))
    return (*map(_holds, near), i > last_user, i + 1 == len(messages))


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
        len(calls) if isinstance(calls, list) else 0,
    )
