"""Chat templates: the Jinja text of a processor, rendered as transformers renders it, without transformers.

Assistant turns are found by rendering a second time with a mark before and after each of their texts. A mark is a
Unicode noncharacter, so it can't be in real text, and the rendering without marks has to come out the same. A turn is
trained from the end of its header (what `add_generation_prompt` writes) to the end of its end-of-turn token, which
takes in reasoning and tool calls; both strings are read off the template itself. A turn that comes out as one without
any text does is not trained.
"""

import re
import warnings
from collections.abc import Collection, Iterator
from contextvars import ContextVar
from functools import cached_property
from itertools import count
from typing import Any

import jinja2

from energon_pack.errors import PackError
from energon_pack.samples.sample import Message
from energon_pack.samples.skip import Reason, Skip
from energon_pack.templates.chat.jinja import environment, strings_in
from energon_pack.templates.chat.normal import normal, reasoning_of, with_reasoning
from energon_pack.templates.chat.skeleton import (
    BEGIN,
    END,
    Shape,
    Skeleton,
    copies_texts,
    is_compared,
    shape_of,
    texts_of,
    with_numbers,
)
from energon_pack.templates.chat.turns import CLOSE, OPEN, Turn, marked_message, put_marks, shared_beginning
from energon_pack.templates.chat.watched import LooksAtText, watched
from energon_pack.templates.settings import DATE

_TURN = re.compile(f"{OPEN}([^{CLOSE}]*){CLOSE}")
_MOST_SPACE = 64  # characters of a text that is empty
_MOST_SHAPES = 10_000
_PROBE = "energon_pack_probe"
#: whether templates tell that they look at texts
_IS_WATCHED: ContextVar[bool] = ContextVar("is_watched", default=False)


class ShortcutWarning(UserWarning):
    """A template looked at texts that it was taken to copy."""


class ChatTemplate:
    """A compiled chat template with its fixed variables (`bos_token`, … and the user's `chat_template_kwargs`)."""

    def __init__(
        self,
        source: str,
        variables: dict[str, Any],
        special_tokens: Collection[str],
        date: str = DATE,
        shortcut: bool = True,
    ):
        """Compile a template.

        Args:
            special_tokens: of the tokenizer, among them the one that ends a turn.
            date: that it writes, an ISO date.
            shortcut: whether one rendering may serve all conversations of a shape.

        Raises:
            PackError: it is not valid Jinja.
        """
        self._source, self._date = source, date
        #: the shortcut wrote another text than the template, and is not taken any more
        self.is_misread = False
        try:
            self._template = environment(date).from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise PackError(f"the chat template is no valid Jinja: line {error.lineno}: {error.message}") from None
        except Exception as error:  # Jinja computes constants when it compiles: 1 // 0
            raise PackError(f"the chat template is no valid Jinja: {error}") from None
        self._variables = {"documents": None, **variables}
        self._variables.pop("add_generation_prompt", None)
        self._wants_parts = False  # until it is known: `_shows` hands contents on as they are
        self._wants_parts = not self._shows("probe") and self._shows(_as_parts("probe"))  # as LLaVA's template does
        self._turn = self._read_turn(special_tokens)
        self._copies_texts = shortcut and copies_texts(lambda messages: self.render(messages, None), strings_in(source))
        self._skeletons: dict[tuple[Shape, bool], Skeleton | None] = {}

    def render(self, messages: list[Message], tools: list[Any] | None, prompt: bool = False) -> str:
        """One conversation as text; media are where their parts of the content stand.

        Args:
            prompt: end with the header of an assistant's turn.

        Raises:
            Skip: `processor_error` where the template refuses the conversation.
        """
        messages = normal(self.as_it_wants(messages))
        if tools and (others := [tool for tool in tools if not isinstance(tool, dict)]):
            raise Skip(Reason.PROCESSOR_ERROR, f"a tool is a {type(others[0]).__name__}, not an object")
        template = self._watched if _IS_WATCHED.get() else self._template
        if template is None:
            raise LooksAtText
        try:
            return template.render(messages=messages, tools=tools, add_generation_prompt=prompt, **self._variables)
        except LooksAtText:
            raise
        except Exception as error:  # a template is a program: what it raises costs the sample
            raise Skip(Reason.PROCESSOR_ERROR, f"chat template: {error}") from None

    def as_it_wants(self, messages: list[Message]) -> list[Message]:
        """Texts as lists of parts, for templates that show no others."""
        if not self._wants_parts:
            return messages
        return [{**message, "content": _as_parts(message["content"])} for message in messages]

    @cached_property
    def _watched(self) -> jinja2.Template | None:
        return watched(self._source, self._date)

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

    def leaves_out_calls(self, messages: list[Message], tools: list[Any] | None) -> bool:
        """Whether a conversation has tool calls that this template writes nowhere."""
        if not any(message.get("tool_calls") for message in messages):
            return False
        leaves_out = False
        for place in ("name", "id"):  # a template may write either of a call
            number = count()
            probed = [_with_probes(message, place, number) for message in messages]
            try:
                text = self.render(probed, tools)
            except Skip:  # it wants them in another form
                continue
            if all(_probe(i) in text for i in range(next(number))):
                return False
            leaves_out = True
        return leaves_out

    def leaves_out_reasoning(self, messages: list[Message], tools: list[Any] | None) -> bool:
        """Whether messages have reasoning, and this template writes none of it."""
        if all(len(message) < 3 or reasoning_of(message) is None for message in messages) or self._shows_reasoning:
            return False
        probed = [m if reasoning_of(m) is None else with_reasoning(m, _PROBE) for m in messages]
        try:
            return _PROBE not in self.render(probed, tools)
        except Skip:  # it wants it in another form, so it looks at it
            return False

    @cached_property
    def _shows_reasoning(self) -> bool:
        """Whether this template writes the reasoning of an ordinary answer."""
        question: Message = {"role": "user", "content": "a"}
        answer = with_reasoning({"role": "assistant", "content": "b"}, _PROBE)
        try:
            return _PROBE in self.render([question, answer], None)
        except Skip:
            return False

    def render_marked(self, messages: list[Message], tools: list[Any] | None, last_only: bool = False) -> str:
        """As `render`, with `OPEN` and `CLOSE` around what is trained: all of a turn that the model has to write.

        Args:
            last_only: train the last of the assistant's turns alone.

        Raises:
            Skip: `bad_message` where the text holds a mark already, `processor_error` where a turn can't be found.
        """
        marked = self._marked(messages, tools, last_only)
        return self._short_turn.sub(lambda turn: turn[1 if _without_space(turn[1]) in self._silence else 0], marked)

    def _marked(self, messages: list[Message], tools: list[Any] | None, last_only: bool) -> str:
        """As `render_marked`, with the turns that hold nothing, too."""
        texts = texts_of(messages)
        if tools is None and self._copies_texts and not _holds_any("".join(texts), (OPEN, CLOSE, BEGIN, END)):
            skeleton = self._skeleton(messages, last_only)
            if skeleton is not None:
                return skeleton.fill(texts)
        return self._render_marked(messages, tools, last_only)

    @cached_property
    def _silence(self) -> set[str]:
        """What this template writes as the turn of an empty text: trained, it would teach to say nothing."""
        silent: list[Message] = [{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}]
        try:
            marked = self._render_marked([*silent, *silent], None, last_only=False)
        except Skip:
            marked = ""
        return {_without_space(turn) for turn in (self._turn.ends, *_TURN.findall(marked))}

    @cached_property
    def _short_turn(self) -> re.Pattern[str]:
        """A marked turn that may be silence."""
        longest = max(map(len, self._silence)) + _MOST_SPACE
        return re.compile(f"{OPEN}([^{CLOSE}]{{0,{longest}}}){CLOSE}")

    def _skeleton(self, messages: list[Message], last_only: bool) -> Skeleton | None:
        """What is around the texts of such conversations, marks and all."""
        shape = shape_of(messages)
        if shape is None:
            return None
        key = (shape, last_only)
        if key not in self._skeletons:
            if len(self._skeletons) > _MOST_SHAPES:
                self._skeletons.clear()
            is_watched = _IS_WATCHED.set(True)
            try:
                marked = self._render_marked(with_numbers(messages), None, last_only)
                whole = self._turn.has_whole(marked)
                self._skeletons[key] = Skeleton(marked, len(texts_of(messages))) if whole else None
            except (Skip, ValueError, LooksAtText):
                self._skeletons[key] = None
            finally:
                _IS_WATCHED.reset(is_watched)
        skeleton = self._skeletons[key]
        return skeleton if skeleton is None or self._is_right(skeleton, messages) else None

    def _is_right(self, skeleton: Skeleton, messages: list[Message]) -> bool:
        """Whether a skeleton makes of a conversation what the template makes of it; one in `ONE_IN` is looked at."""
        texts = texts_of(messages)
        if not is_compared(texts):
            return True
        try:
            if self.render(messages, None) == skeleton.fill(texts).replace(OPEN, "").replace(CLOSE, ""):
                return True
        except Skip:
            pass
        self._copies_texts, self.is_misread = False, True
        warnings.warn(
            f"the chat template that begins with {self._source[:60]!r} looks at texts: from here on each conversation"
            " is rendered whole",
            ShortcutWarning,
            stacklevel=2,
        )
        return False

    def _render_marked(self, messages: list[Message], tools: list[Any] | None, last_only: bool) -> str:
        plain = self.render(messages, tools)
        if OPEN in plain or CLOSE in plain:
            raise Skip(Reason.BAD_MESSAGE, "the text holds the noncharacter U+FDD0 or U+FDD1")
        trained = [i for i, message in enumerate(messages) if _is_trained(message)]
        if last_only:
            trained = trained[-1:] if trained and trained[-1] == _last_answer(messages) else []
        if not trained:
            return plain
        for place in ("name", "id"):  # a template may write either of a tool call
            with_marks = list(messages)
            for i in trained:
                with_marks[i] = marked_message(messages[i], place)
            spans = self._turn.spans(self.render(with_marks, tools), plain, len(trained))
            if spans is not None:
                return put_marks(plain, spans)
        return put_marks(plain, [self._span_by_prefix(messages, tools, plain, i) for i in trained])

    def _span_by_prefix(self, messages: list[Message], tools: list[Any] | None, plain: str, i: int) -> tuple[int, int]:
        """A turn as what is added when its message joins those before: for templates that look at the text itself."""
        start = len(self.render(messages[:i], tools, prompt=True))
        whole = self.render(messages[: i + 1], tools)
        if not plain.startswith(whole[:start]):
            raise Skip(Reason.PROCESSOR_ERROR, "the chat template changes assistant text; no labels can be found")
        end = self._turn.end_after(plain, start)
        if end is None or not plain.startswith(whole[:end]):
            raise Skip(Reason.PROCESSOR_ERROR, "the chat template changes assistant text; no labels can be found")
        return start, end

    def _shows(self, content: Any) -> bool:
        """Whether the template writes the text `probe` where it is in such a content."""
        try:
            return "probe" in self.render([{"role": "user", "content": content}], None)
        except Skip:
            return False

    def _read_turn(self, special_tokens: Collection[str]) -> Turn:
        question: Message = {"role": "user", "content": "a"}
        answer: Message = {"role": "assistant", "content": "b"}
        try:
            before = self.render([question], None)
            prompted = self.render([question], None, prompt=True)
            marked = self.render([question, marked_message(answer)], None)
            older = self.render([question, marked_message(answer), question, answer], None)
        except Skip:  # it wants more than questions and answers
            return Turn((), "", "")
        # The prompt of a thinking model may hold more than its turns show later: `<think>`, say.
        headers = {shared_beginning(prompted, turn)[len(before) :].partition(OPEN)[0] for turn in (marked, older)} - {
            ""
        }
        longest_first = tuple(sorted(headers, key=len, reverse=True))
        special = re.compile("|".join(map(re.escape, sorted(special_tokens, key=len, reverse=True))) or "(?!)")
        begins, ends = special.search("".join(longest_first)), special.search(marked.partition(CLOSE)[2])
        return Turn(longest_first, begins[0] if begins else "", ends[0] if ends else "")


def _holds_any(text: str, characters: tuple[str, ...]) -> bool:
    return not text.isascii() and any(character in text for character in characters)


def _without_space(text: str) -> str:
    return "".join(text.split())


def _probe(number: int) -> str:
    return f"{_PROBE}_{number}_"


def _with_probes(message: Message, place: str, number: Iterator[int]) -> Message:
    """A message with probes in place of the names, or ids, of its tool calls."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    probed: list[Any] = []
    for call in calls if isinstance(calls, list) else [calls]:
        probe = _probe(next(number))
        if not isinstance(call, dict):
            probed.append(call)
        elif place == "name" and isinstance(call.get("function"), dict):
            probed.append({**call, "function": {**call["function"], "name": probe}})
        else:
            probed.append({**call, place: probe})
    return {**message, "tool_calls": probed}


def _is_trained(message: Message) -> bool:
    switches = (message.get("loss"), message.get("weight"))
    return message["role"] == "assistant" and all(switch is None or bool(switch) for switch in switches)


def _last_answer(messages: list[Message]) -> int:
    return max(i for i, message in enumerate(messages) if message["role"] == "assistant")


def _as_parts(content: Any) -> Any:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
