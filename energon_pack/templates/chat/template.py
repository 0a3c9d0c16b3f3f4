"""Render chat templates, the Jinja texts of processors, as transformers does, and mark the trained parts.

Trained parts stand between two marks, Unicode noncharacters; `spans` finds them. Without its marks, a text must equal
the text that is rendered without marks.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple

from energon_pack.samples.sample import REASONING_KEYS, Message
from energon_pack.samples.skip import Reason, Skip
from energon_pack.samples.weights import PartWeights
from energon_pack.templates.chat.dropped_words import NOTHING_DROPPED, DroppedWordFinder, DroppedWords
from energon_pack.templates.chat.final_end import TextAndCallAnswerEnds, add_end, ends_with_token
from energon_pack.templates.chat.guarded_template import TemplateReadsText
from energon_pack.templates.chat.jinja import has_generation_blocks
from energon_pack.templates.chat.labels import (
    Range,
    ThinkMarks,
    TrainedSpan,
    adjust_spans,
    part_weights_by_message,
    turn_weights,
    weight_of_last_answer_end,
    without_earlier_thoughts,
)
from energon_pack.templates.chat.renderer import Renderer, raise_if_template_reads_text
from energon_pack.templates.chat.spans import SpanFinder
from energon_pack.templates.chat.text_marks import (
    NONCHARACTERS,
    MarkLevel,
    Shape,
    Skeleton,
    conversation_shape_without_texts,
    mark_texts,
    remove_text_marks,
    texts_of,
    with_texts_replaced_by_numbers,
)
from energon_pack.templates.chat.turns import Span, SpecialTokens, TurnForm, mark_spans, shared_beginning
from energon_pack.templates.settings import DEFAULT_DATE, FINAL_END_AUTO, LabelSettings, TemplateDrops, Think, ToolCalls

_MAX_SHAPES = 10_000
_MAX_VARIANTS = 100
_ALL = LabelSettings()
_THINK = ThinkMarks("<think>", "</think>")
_PROBE = "energon_pack_probe"


class TextWithSpanMarks(NamedTuple):
    """A rendered conversation with `OPEN` and `CLOSE` around its trained spans, and the loss weights of the spans."""

    text: str
    weights: list[float]  # of each span; 0: the other text counts (`labels.prompt_weight`), but this span does not
    dropped: DroppedWords = NOTHING_DROPPED


class ChatTemplate:
    """Renders conversations by the chat template of a model, and marks what is trained in them."""

    def __init__(
        self,
        source: str,
        variables: Mapping[str, Any],
        special_tokens: Collection[str],
        date: str = DEFAULT_DATE,
        needs_tools: bool = False,
    ):
        """Compile a template; raises PackError if it is not valid Jinja.

        Args:
            variables: the variables that are the same for all conversations.
            special_tokens: the tokenizer's special tokens, including the one that ends a turn.
        """
        self.renderer = Renderer(source, variables, date, needs_tools)
        self.render = self.renderer.render
        self._arguments = special_tokens, date, needs_tools
        self._special = SpecialTokens(special_tokens)
        self._turn = self._read_turn()
        self._has_blocks = has_generation_blocks(source)
        self._spans = SpanFinder(self.render, self._turn, self._special, self._has_blocks)
        self._skeletons: dict[tuple[Shape, tuple[int, ...]], Skeleton | None] = {}
        self._variants: dict[str, ChatTemplate] = {}

    def with_variables(self, variables: Mapping[str, Any]) -> "ChatTemplate":
        """Return the template with a sample's own variables added; raises PackError like `ChatTemplate`."""
        if not variables:
            return self
        key = json.dumps(variables, sort_keys=True, default=str)
        if key not in self._variants:
            if len(self._variants) >= _MAX_VARIANTS:
                self._variants.clear()
            renderer = self.renderer
            self._variants[key] = ChatTemplate(renderer.source, {**renderer.variables, **variables}, *self._arguments)
        return self._variants[key]

    def render_marked(
        self, messages: list[Message], tools: list[Any] | None, labels: LabelSettings = _ALL
    ) -> TextWithSpanMarks:
        """Render a conversation with `OPEN` and `CLOSE` around its trained parts: what the model has to write.

        Raises:
            Skip: `bad_message` if the text already contains such a mark, or a turn's weight is invalid;
                `processor_error` if a turn can't be found; `template_drops` if words are left out.
        """
        weights = turn_weights(messages, labels)
        texts = texts_of(messages)
        if tools is None and not _holds_noncharacters("".join(texts)):
            skeleton = self._skeleton(messages, texts, tuple(weights))
            if skeleton is not None:
                return TextWithSpanMarks(skeleton.fill(texts), [*weights.values()])
        plain = self.render(messages, tools)
        if _holds_noncharacters(plain):
            raise Skip(Reason.BAD_MESSAGE, "the text holds one of the noncharacters U+FDD0 to U+FDEF")
        parts = part_weights_by_message(messages, labels.train_on)
        spans = self._find_spans(plain, messages, tools, weights, labels.tool_calls is ToolCalls.train, parts)
        with_thoughts = labels.think is not Think.mask
        dropped = self._word_check.dropped(messages, plain, _ranges_of_messages(spans), with_thoughts)
        if dropped.others and labels.template_drops is TemplateDrops.skip:
            raise Skip(Reason.TEMPLATE_DROPS, dropped.detail(messages))
        keeps_zeros = labels.prompt_weight > 0 or labels.think in (Think.mask, Think.mask_empty)
        return _with_marks(plain, spans, weights, keeps_zeros)._replace(dropped=dropped)

    def adjust_spans(self, text: str, spans: Sequence[TrainedSpan], labels: LabelSettings) -> list[TrainedSpan]:
        """Cut or widen the spans of trained turns as `labels` says; return the trained spans of weight > 0."""
        return adjust_spans(text, spans, labels, self._turn, self._special, self._think)

    def without_earlier_thoughts(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages; the assistant's before the user's last one lose their reasoning and thoughts."""
        return without_earlier_thoughts(messages, self._think)

    @cached_property
    def _think(self) -> ThinkMarks:
        """Return the texts that the template writes around a thought; `<think>` and `</think>` if it shows none."""
        question: Message = {"role": "user", "content": "a"}
        answer: Message = {"role": "assistant", "content": "b", REASONING_KEYS[0]: "c"}
        marked, _ = mark_texts([question, answer], MarkLevel.ALL)
        try:
            written = remove_text_marks(self.render(marked, None, marks=True))
        except Skip:
            return _THINK
        thought, answered = ([mark.position for mark in written.marks if mark.leaf == leaf] for leaf in (1, 2))
        if len(thought) < 2 or len(answered) < 2:
            return _THINK
        start = self._turn.begin(written.text, 0, thought[0]) or thought[0]
        first, last = written.text[start : thought[0]].strip(), written.text[thought[1] : answered[0]].strip()
        if not first:  # the header contains it
            first = written.text[: thought[0]].rstrip().rpartition("\n")[2]
        return ThinkMarks(first, last) if first and last else _THINK

    @cached_property
    def _word_check(self) -> DroppedWordFinder:
        return DroppedWordFinder([*dict.fromkeys((self._think, _THINK))], self._special, self._has_blocks)

    def with_final_end(
        self, marked: TextWithSpanMarks, messages: Sequence[Message], labels: LabelSettings
    ) -> tuple[TextWithSpanMarks, str]:
        """Add the token of `labels.final_end` to the result of `render_marked`; return it, and the token or "".

        A last answer that is not trained up to its end gets none.
        """
        if labels.final_end == FINAL_END_AUTO and not self._auto_adds_end:  # most templates end their answers
            return marked, ""
        token = self.last_answer_ends.end_token_to_add(labels.final_end, bool(messages[-1].get("tool_calls")))
        weight = weight_of_last_answer_end(messages, labels)
        if not token or not weight or ends_with_token(marked.text, token):
            return marked, ""
        text, weights = add_end(marked.text, marked.weights, token, weight)
        return marked._replace(text=text, weights=weights), token

    @cached_property
    def _auto_adds_end(self) -> bool:
        return bool(self.last_answer_ends.added_tokens(FINAL_END_AUTO))

    @property
    def ends_answers(self) -> bool:
        """Whether a special token follows answers before the last, or nobody can tell. See `last_answer_ends`, too."""
        return not self.texts_after_answers or bool(self._special.first(self.texts_after_answers[0]))

    @cached_property
    def last_answer_ends(self) -> TextAndCallAnswerEnds:
        """What the template writes behind the last answer of a conversation."""
        return TextAndCallAnswerEnds(self.render, self._special)

    @cached_property
    def texts_after_answers(self) -> list[str]:
        """The texts behind the first of two answers and behind the last; empty list: the template refuses the test."""
        question: Message = {"role": "user", "content": "a"}
        answer: Message = {"role": "assistant", "content": _PROBE}
        try:
            _, *after = self.render([question, answer] * 2, None).split(_PROBE)
        except Skip:
            return []
        return after

    def _skeleton(self, messages: list[Message], texts: Sequence[str], trained: tuple[int, ...]) -> Skeleton | None:
        """Return the marked output for conversations of this shape; None: the template does more than copy texts."""
        shape = conversation_shape_without_texts(messages)
        if shape is None:
            return None
        key = (shape, trained)
        if key not in self._skeletons:
            if len(self._skeletons) > _MAX_SHAPES:
                self._skeletons.clear()
            try:
                with raise_if_template_reads_text():
                    numbered = with_texts_replaced_by_numbers(messages)
                    plain = self.render(numbered, None)
                    weights = dict.fromkeys(trained, 1.0)
                    marked = _with_marks(plain, self._find_spans(plain, numbered, None, weights), weights).text
                whole = self._turn.fits_marked_spans(marked)
                self._skeletons[key] = Skeleton(marked, len(texts)) if whole else None
            except (Skip, ValueError, TemplateReadsText):
                self._skeletons[key] = None
        return self._skeletons[key]

    def _find_spans(
        self,
        plain: str,
        messages: list[Message],
        tools: list[Any] | None,
        weights: Mapping[int, float],
        with_calls: bool = True,
        parts: Mapping[int, PartWeights] | None = None,
    ) -> list[Span]:
        """Find the trained spans of a conversation that is rendered already, as `render_marked` does."""
        if not weights and not any(message.get("tool_calls") for message in messages):
            return []
        return self._spans.find(messages, tools, plain, [*weights], with_calls, parts or {})

    def _read_turn(self) -> TurnForm:
        question: Message = {"role": "user", "content": "a"}
        answer: Message = {"role": "assistant", "content": "b"}
        (marked,), _ = mark_texts([answer], MarkLevel.ALL)
        call = {"id": "call_0001", "type": "function", "function": {"name": "f", "arguments": {"x": "y"}}}
        (calling,), _ = mark_texts([{"role": "assistant", "content": "", "tool_calls": [call]}], MarkLevel.ALL)
        special = self._special
        try:
            before = self.render([question], None)
            prompted = self.render([question], None, prompt=True)[len(before) :]
            last, older = (
                _around_marked_texts(self.render([question, marked, *more], None), len(before))
                for more in ([], [question, answer])
            )
        except Skip:  # it needs more than questions and answers
            return TurnForm((), "", "", False, False)
        # The prompt of a thinking model may hold more than its turns show later: `<think>`, say.
        lead = "" if prompted or last[0].strip() else last[0]
        headers = {shared_beginning(prompted or last[0], head) for head, _ in (last, older)} - {lead}
        with suppress(Skip):
            head, _ = _around_marked_texts(self.render([question, calling], None), len(before))
            header = shared_beginning(prompted, head)
            headers.add(header[: max(header.rfind("\n") + 1, special.end_of_last(header))])
        longest_first = tuple(sorted(headers - {""}, key=len, reverse=True))
        ends = shared_beginning(last[1], older[1])
        ends = ends[: special.start_of_cut_token(older[1], len(ends))].strip()
        if not special.first(ends):
            ends = special.first(older[1])
        is_next = bool(ends) and not special.first(last[1])
        return TurnForm(longest_first, special.first("".join(longest_first)), ends, is_next, bool(prompted), lead)


def _with_marks(
    plain: str, spans: Sequence[Span], weights: Mapping[int, float], keeps_zeros: bool = False
) -> TextWithSpanMarks:
    """Put marks around the trained spans of a text; `keeps_zeros`: also around parts of turns that are not trained."""
    spans = [span for span in spans if span.weight != 0 or keeps_zeros]
    text = mark_spans(plain, [(span.start, span.end) for span in spans])
    return TextWithSpanMarks(text, [weights[span.message] if span.weight is None else span.weight for span in spans])


def _ranges_of_messages(spans: Sequence[Span]) -> dict[int, Range]:
    """Return for each message the range from its first span to the end of its last one."""
    ranges: dict[int, Range] = {}
    for span in spans:
        start = ranges[span.message][0] if span.message in ranges else span.start
        ranges[span.message] = (start, span.end)
    return ranges


def _around_marked_texts(output: str, start: int) -> tuple[str, str]:
    """Return the text between `start` and the first marked text, and the text after the last one."""
    written = remove_text_marks(output)
    if not written.marks:
        raise Skip(Reason.PROCESSOR_ERROR, "the chat template writes no text")
    first, last = written.marks[0].position, written.marks[-1].position
    return written.text[start:first], written.text[last:]


def _holds_noncharacters(text: str) -> bool:
    return not text.isascii() and NONCHARACTERS.search(text) is not None
