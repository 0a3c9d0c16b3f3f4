"""Chat templates: the Jinja text of a processor, rendered as transformers renders it, without transformers.

What is trained of a conversation stands between two marks, Unicode noncharacters; `spans` says how it is found. A text
without its marks has to be what is rendered without any.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple

import jinja2

from energon_pack.errors import PackError
from energon_pack.samples.raw_json import parse_json
from energon_pack.samples.sample import Message
from energon_pack.samples.skip import Reason, Skip
from energon_pack.samples.weights import turn_weight
from energon_pack.templates.chat.jinja import GENERATION_MARKS, environment, generates, strings_in
from energon_pack.templates.chat.labels import ThinkMarks, Trained, adjusted, without_thoughts
from energon_pack.templates.chat.leaves import GENERATION, NONCHARACTERS, REASONING, Level, mark_leaves, read_marks
from energon_pack.templates.chat.skeleton import (
    Shape,
    Skeleton,
    copies_texts,
    shape_of,
    texts_of,
    with_numbers,
)
from energon_pack.templates.chat.spans import Spans
from energon_pack.templates.chat.turns import SpecialTokens, Turn, put_marks, shared_beginning
from energon_pack.templates.settings import LabelsConfig, ToolCalls, TrainOn

_MOST_SHAPES = 10_000
_MOST_VARIANTS = 100
_PROBE = "energon_pack_probe"
_ALL = LabelsConfig()
_THINK = ThinkMarks("<think>", "</think>")


class Marked(NamedTuple):
    """A conversation as text, with marks around what is trained."""

    text: str
    weights: list[float]  # of each span


class ChatTemplate:
    """A compiled chat template with its fixed variables (`bos_token`, … and the user's `chat_template_kwargs`)."""

    def __init__(self, source: str, variables: dict[str, Any], special_tokens: Collection[str]):
        """Compile a template.

        Args:
            special_tokens: of the tokenizer, among them the one that ends a turn.

        Raises:
            PackError: it is not valid Jinja.
        """
        try:
            self._template = environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise PackError(f"the chat template is no valid Jinja: line {error.lineno}: {error.message}") from None
        except Exception as error:  # Jinja computes constants when it compiles: 1 // 0
            raise PackError(f"the chat template is no valid Jinja: {error}") from None
        self._variables = {key: value for key, value in variables.items() if key != "add_generation_prompt"}
        self._wants_parts = False  # until it is known: `_shows` hands contents on as they are
        self._wants_parts = not self._shows("probe") and self._shows(_as_parts("probe"))  # as LLaVA's template does
        self._source, self._special_tokens = source, special_tokens
        self._special = SpecialTokens(special_tokens)
        self._turn = self._read_turn(self._special)
        self._spans = Spans(self.render, self._turn, self._special, generates(source))
        self._copies_texts = copies_texts(lambda messages: self.render(messages, None), strings_in(source))
        self._skeletons: dict[tuple[Shape, tuple[int, ...]], Skeleton | None] = {}
        self._variants: dict[str, ChatTemplate] = {}
        self._roles: dict[str, bool] = {}

    def with_variables(self, variables: Mapping[str, Any]) -> "ChatTemplate":
        """The same with other variables, which a sample asks for; raises PackError as the template itself."""
        if not variables:
            return self
        key = json.dumps(variables, sort_keys=True, default=str)
        if key not in self._variants:
            if len(self._variants) >= _MOST_VARIANTS:
                self._variants.clear()
            self._variants[key] = ChatTemplate(self._source, {**self._variables, **variables}, self._special_tokens)
        return self._variants[key]

    def render(
        self, messages: list[Message], tools: list[Any] | None, prompt: bool = False, marks: bool = False
    ) -> str:
        """One conversation as text; media are where their parts of the content stand.

        Args:
            prompt: end with the header of an assistant's turn.
            marks: put marks around what `{% generation %}` blocks write.

        Raises:
            Skip: `processor_error` where the template refuses the conversation.
        """
        messages = self.as_it_wants(messages)
        variables = {**self._variables, GENERATION_MARKS: GENERATION} if marks else self._variables
        try:
            return self._template.render(messages=messages, tools=tools, add_generation_prompt=prompt, **variables)
        except Exception as error:  # a template is a program: what it raises costs the sample
            raise Skip(Reason.PROCESSOR_ERROR, f"chat template: {error}") from None

    def as_it_wants(self, messages: list[Message]) -> list[Message]:
        """Texts as lists of parts, for templates that show no others, and arguments of tools as what it writes."""
        if any(message.get("tool_calls") for message in messages) and self._wants_objects:
            messages = list(map(_with_objects, messages))
        if not self._wants_parts:
            return messages
        return [{**message, "content": _as_parts(message["content"])} for message in messages]

    @cached_property
    def _wants_objects(self) -> bool:
        """Whether arguments of tools that are text, as OpenAI has them, would be refused, or quoted once more."""
        written = []
        for arguments in (f'{{"{_PROBE}": "b"}}', {_PROBE: "b"}):
            call = {"id": "call_0001", "type": "function", "function": {"name": "f", "arguments": arguments}}
            messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
            try:
                written.append(self._template.render(messages=messages, tools=None, **self._variables))
            except Exception:  # a template is a program
                written.append("")
        return _PROBE in written[1] and (not written[0] or f'\\"{_PROBE}' in written[0])

    @cached_property
    def shows_tools(self) -> bool:
        """Whether this template writes a list of tools anywhere."""
        tools = [{"type": "function", "function": {"name": _PROBE, "parameters": {}}}]
        try:
            return _PROBE in self.render(
                [{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}], tools
            )
        except Skip:  # it wants them in another form, so it looks at them
            return True

    def shows_role(self, role: str) -> bool:
        """Whether this template writes turns of a role; one that refuses the question tells nothing."""
        if role not in self._roles:
            turns = [{"role": "user", "content": "a"}, {"role": role, "content": _PROBE}]
            first = turns[::-1] if role == "developer" else [*turns, {"role": "assistant", "content": "b"}]
            try:
                self._roles[role] = _PROBE in self.render(first, None)
            except Skip:
                self._roles[role] = True
        return self._roles[role]

    def render_marked(self, messages: list[Message], tools: list[Any] | None, labels: LabelsConfig = _ALL) -> Marked:
        """As `render`, with `OPEN` and `CLOSE` around what is trained: all of a turn that the model has to write.

        Raises:
            Skip: `bad_message` where the text holds such a mark already, or a turn's weight is none; `processor_error`
                where a turn can't be found.
        """
        weights = self._weights(messages, labels.train_on)
        texts = texts_of(messages)
        if tools is None and self._copies_texts and not _holds_noncharacters("".join(texts)):
            skeleton = self._skeleton(messages, tuple(weights))
            if skeleton is not None:
                return Marked(skeleton.fill(texts), [*weights.values()])
        plain = self.render(messages, tools)
        if _holds_noncharacters(plain):
            raise Skip(Reason.BAD_MESSAGE, "the text holds one of the noncharacters U+FDD0 to U+FDEF")
        return self._marked(plain, messages, tools, weights, labels.tool_calls is ToolCalls.train)

    def adjusted(self, text: str, spans: Sequence[Trained], labels: LabelsConfig) -> list[Trained]:
        """Spans of whole turns as `labels` wants them."""
        return adjusted(text, spans, labels, self._turn, self._special, self._think)

    def without_thoughts(self, messages: Sequence[Message]) -> list[Message]:
        """A conversation whose answers before the last question hold no thoughts."""
        return without_thoughts(messages, self._think)

    @cached_property
    def _think(self) -> ThinkMarks:
        """What the template writes around a thought; where it writes none, what models put into their texts."""
        question: Message = {"role": "user", "content": "a"}
        answer: Message = {"role": "assistant", "content": "b", REASONING[0]: "c"}
        marked, _ = mark_leaves([question, answer], Level.ALL)
        try:
            written = read_marks(self.render(marked, None, marks=True))
        except Skip:
            return _THINK
        thought, said = ([mark.position for mark in written.marks if mark.leaf == leaf] for leaf in (1, 2))
        if len(thought) < 2 or len(said) < 2:
            return _THINK
        start = self._turn.begin(written.text, 0, thought[0]) or thought[0]
        opened = "".join(head for head in self._turn.headers[:1] if written.text[:start].endswith(head))
        first = written.text[start : thought[0]].strip() or opened.strip().splitlines()[-1:]
        last = written.text[thought[1] : said[0]].strip()
        return ThinkMarks(first if isinstance(first, str) else "".join(first), last) if first and last else _THINK

    def _weights(self, messages: Sequence[Message], train_on: TrainOn) -> dict[int, float]:
        """The turns that are trained, and how much each of them counts."""
        last = max((i for i, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
        chosen = (train_on is TrainOn.all or i == last for i in range(len(messages)))
        weights = [turn_weight(message, is_chosen) for message, is_chosen in zip(messages, chosen, strict=True)]
        return {i: weight for i, weight in enumerate(weights) if weight}

    def _skeleton(self, messages: list[Message], trained: tuple[int, ...]) -> Skeleton | None:
        """What is around the texts of such conversations, marks and all."""
        shape = shape_of(messages)
        if shape is None:
            return None
        key = (shape, trained)
        if key not in self._skeletons:
            if len(self._skeletons) > _MOST_SHAPES:
                self._skeletons.clear()
            try:
                numbered = with_numbers(messages)
                marked, _ = self._marked(self.render(numbered, None), numbered, None, dict.fromkeys(trained, 1.0))
                whole = self._turn.has_whole(marked)
                self._skeletons[key] = Skeleton(marked, len(texts_of(messages))) if whole else None
            except (Skip, ValueError):
                self._skeletons[key] = None
        return self._skeletons[key]

    def _marked(
        self,
        plain: str,
        messages: list[Message],
        tools: list[Any] | None,
        weights: Mapping[int, float],
        with_calls: bool = True,
    ) -> Marked:
        """As `render_marked`, of a conversation that was rendered."""
        if not weights and not any(message.get("tool_calls") for message in messages):
            return Marked(plain, [])
        spans = self._spans.find(messages, tools, plain, [*weights], with_calls)
        text = put_marks(plain, [(span.start, span.end) for span in spans])
        return Marked(text, [weights[span.message] for span in spans])

    def _shows(self, content: Any) -> bool:
        """Whether the template writes the text `probe` where it is in such a content."""
        try:
            return "probe" in self.render([{"role": "user", "content": content}], None)
        except Skip:
            return False

    def _read_turn(self, special: SpecialTokens) -> Turn:
        question: Message = {"role": "user", "content": "a"}
        answer: Message = {"role": "assistant", "content": "b"}
        (marked,), _ = mark_leaves([answer], Level.ALL)
        call = {"id": "call_0001", "type": "function", "function": {"name": "f", "arguments": {"x": "y"}}}
        (calling,), _ = mark_leaves([{"role": "assistant", "content": "", "tool_calls": [call]}], Level.ALL)
        try:
            before = self.render([question], None)
            prompted = self.render([question], None, prompt=True)[len(before) :]
            last, older = (
                _around_first(self.render([question, marked, *more], None), len(before))
                for more in ([], [question, answer])
            )
        except Skip:  # it wants more than questions and answers
            return Turn((), "", "", False, False)
        # The prompt of a thinking model may hold more than its turns show later: `<think>`, say.
        headers = {shared_beginning(prompted or last[0], head) for head, _ in (last, older)}
        with suppress(Skip):
            head, _ = _around_first(self.render([question, calling], None), len(before))
            headers.add(_up_to_line(shared_beginning(prompted, head), special))
        longest_first = tuple(sorted(headers - {""}, key=len, reverse=True))
        ends = shared_beginning(last[1], older[1])
        ends = ends[: special.whole(older[1], len(ends))].strip()
        is_next = not special.first(ends) and bool(special.first(older[1]))
        if is_next:
            ends = special.first(older[1])
        return Turn(longest_first, special.first("".join(longest_first)), ends, is_next, bool(prompted))


def _around_first(output: str, start: int) -> tuple[str, str]:
    """What a template writes before the first marked text, from a place on, and after it."""
    written = read_marks(output)
    if not written.marks:
        raise Skip(Reason.PROCESSOR_ERROR, "the chat template writes no text")
    first, last = written.marks[0].position, written.marks[-1].position
    return written.text[start:first], written.text[last:]


def _up_to_line(text: str, special: SpecialTokens) -> str:
    """A beginning without what follows its last line break or special token."""
    return text[: max(text.rfind("\n") + 1, special.last_end(text))]


def _holds_noncharacters(text: str) -> bool:
    return not text.isascii() and NONCHARACTERS.search(text) is not None


def _as_parts(content: Any) -> Any:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _with_objects(message: Message) -> Message:
    """A message whose tool calls have objects as arguments: text that is none stays text."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    return {**message, "tool_calls": list(map(_with_object, calls))}


def _with_object(call: Any) -> Any:
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        value = parse_json(function["arguments"])
    except Skip:
        return call
    if not isinstance(value, dict):
        return call
    return (
        {**call, "function": {**function, "arguments": value}} if "function" in call else {**call, "arguments": value}
    )
