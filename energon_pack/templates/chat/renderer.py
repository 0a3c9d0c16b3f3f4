"""A compiled chat template: renders conversations as transformers does, and finds out what the template writes."""

from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jinja2

from energon_pack.errors import PackError
from energon_pack.run.untrusted_input import BoundExceeded, bounded_memory_and_time
from energon_pack.samples.media.kinds import KINDS
from energon_pack.samples.raw_record import parse_json_or_skip
from energon_pack.samples.sample import REASONING_KEYS, Message
from energon_pack.samples.skip import Reason, Skip
from energon_pack.templates.chat.guarded_template import TemplateReadsText, compile_template_guarding_texts
from energon_pack.templates.chat.jinja import GENERATION_MARKS_VARIABLE, environment
from energon_pack.templates.chat.text_marks import GENERATION
from energon_pack.templates.settings import DEFAULT_DATE

if TYPE_CHECKING:
    from collections.abc import Iterator

_PROBE = "energon_pack_probe"
_PARAMETERS = {"type": "object", "properties": {"x": {"type": "string", "description": "x"}}, "required": ["x"]}
#: a tool for questions to templates
EXAMPLE_TOOL = {"type": "function", "function": {"name": "f", "description": "f", "parameters": _PARAMETERS}}
#: what one conversation may take, beside what its texts do: bytes, characters, seconds of the CPU
_MAX_MEMORY_BYTES, _MAX_CHARACTERS, _MAX_SECONDS = 256 << 20, 10_000_000, 20.0
#: characters that a turn counts beside its text: its header, and the messages around it
_TURN_CHARACTERS = 64
#: whether templates raise an error when they look at texts
_IS_GUARDED: ContextVar[bool] = ContextVar("is_guarded", default=False)


def normalize_messages_for_template(messages: list[Message]) -> list[Message]:
    """Return messages without keys whose value is None, and with their reasoning under both keys that templates read.

    Keys inside tool calls and content parts stay, even if None, as in transformers.
    """
    return [_normalized_message(message) for message in messages]


def index_of_last_question(messages: Sequence[Message]) -> int:
    """Return the index of the user's last message; -1: there is none."""
    return max((i for i, message in enumerate(messages) if message["role"] == "user"), default=-1)


def reasoning_of(message: Message) -> Any:
    """Return the reasoning of a message, from the first of the usual keys that has it; None: it has none."""
    return next((message[key] for key in REASONING_KEYS if message.get(key) is not None), None)


def _normalized_message(message: Message) -> Message:
    if None in message.values():
        message = {key: value for key, value in message.items() if value is not None}
    if len(message) < 3 or (reasoning := reasoning_of(message)) is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


class Renderer:
    """Renders conversations by one chat template with fixed variables (`bos_token`, … and `chat_template_kwargs`)."""

    def __init__(self, source: str, variables: Mapping[str, Any], date: str = DEFAULT_DATE, needs_tools: bool = False):
        """Compile a template.

        Args:
            date: the ISO date that it writes as today.
            needs_tools: it serves only conversations with tools, and may refuse all others.
        """
        self.source = source
        self._date = date
        try:
            with bounded_memory_and_time(_MAX_MEMORY_BYTES, _MAX_SECONDS):
                self._template = environment(date).from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise PackError(f"the chat template is no valid Jinja: line {error.lineno}: {error.message}") from None
        except Exception as error:  # Jinja computes constants when it compiles: 1 // 0
            raise PackError(f"the chat template is no valid Jinja: {error}") from None
        self.variables = {"documents": None, **variables}
        self.variables.pop("add_generation_prompt", None)
        self._tools_of_questions = [EXAMPLE_TOOL] if needs_tools else None
        self._wants_parts, self._takes_parts = False, True  # until it is known, `_question_text` changes no contents
        as_text, as_parts = self._question_text("probe"), self._question_text(_as_parts("probe"))
        self._wants_parts = "probe" not in as_text and "probe" in as_parts  # for example LLaVA's template
        self._takes_parts = self._wants_parts or as_text == as_parts  # other templates print a list

    def render(
        self, messages: list[Message], tools: list[Any] | None, prompt: bool = False, marks: bool = False
    ) -> str:
        """Render one conversation as text; media stand where their content parts stand.

        Args:
            prompt: end with the header of an assistant's turn.
            marks: put the noncharacters `leaves.GENERATION` around the output of `{% generation %}` blocks.

        Raises:
            Skip: `processor_error` if the template refuses the conversation.
            LooksAtText: only within `raise_if_template_reads_text`.
        """
        messages = normalize_messages_for_template(self.in_template_form(messages))
        if tools and (no_objects := [tool for tool in tools if not isinstance(tool, dict)]):
            raise Skip(Reason.PROCESSOR_ERROR, f"a tool is a {type(no_objects[0]).__name__}, not an object")
        variables = {**self.variables, GENERATION_MARKS_VARIABLE: GENERATION} if marks else self.variables
        template = self._guarded_template if _IS_GUARDED.get() else self._template
        if template is None:
            raise TemplateReadsText
        try:
            tools = tools or self._tools_of_questions
            return _render_bounded(template, messages, tools=tools, add_generation_prompt=prompt, **variables)
        except TemplateReadsText:
            raise
        except Exception as error:  # a template is a program: if it raises an error, the sample is left out
            raise Skip(Reason.PROCESSOR_ERROR, f"chat template: {error}{_advice_on_calls(messages)}") from None

    def in_template_form(self, messages: list[Message]) -> list[Message]:
        """Return messages in the form that the template takes: content as text or parts, tool arguments as objects."""
        if max(map(len, messages), default=0) > 2 and any(message.get("tool_calls") for message in messages):
            messages = list(map(_with_objects, messages)) if self._wants_objects else messages
        if self._renamed_part_types and any(not isinstance(message["content"], str) for message in messages):
            messages = [
                {**message, "content": _with_renamed_types(message["content"], self._renamed_part_types)}
                for message in messages
            ]
        if not self._takes_parts:
            return [{**message, "content": _with_joined_texts(message["content"])} for message in messages]
        if not self._wants_parts:
            return messages
        return [{**message, "content": _as_parts(message["content"])} for message in messages]

    @cached_property
    def _wants_objects(self) -> bool:
        """Whether tool arguments must be objects: the template refuses a JSON text (OpenAI's form), or quotes it."""
        for content in ("", "b"):  # a template may refuse an answer without a text
            text, parsed = (
                self._call_text(content, arguments) for arguments in (f'{{"{_PROBE}": "b"}}', {_PROBE: "b"})
            )
            if text or parsed:
                return _PROBE in parsed and (not text or f'\\"{_PROBE}' in text)
        return False

    def _call_text(self, content: str, arguments: Any) -> str:
        """Return the text that the template writes for a tool call; empty: it refuses the call."""
        call = {"id": "call_0001", "type": "function", "function": {"name": "f", "arguments": arguments}}
        answer: Message = {"role": "assistant", "content": content, "tool_calls": [call]}
        return self._probe_text([{"role": "user", "content": "a"}, answer]) or ""

    @cached_property
    def _renamed_part_types(self) -> dict[str, str]:
        """By kind of media, the type of content parts that the template takes, where it refuses the usual one."""
        names = {}
        for medium in KINDS.values():
            taken = [name for name in medium.part_types if self._takes_part(name)]
            if taken and medium.kind not in taken:
                names[medium.kind] = taken[0]
        return names

    def _takes_part(self, name: str) -> bool:
        messages = [{"role": "user", "content": [{"type": "text", "text": _PROBE}, {"type": name}]}]
        return self._probe_text(messages) is not None

    def _probe_text(self, messages: list[Message], **more: Any) -> str | None:
        """Return the text of a short test conversation; None: the template refuses it."""
        try:
            return _render_bounded(self._template, messages, tools=self._tools_of_questions, **self.variables, **more)
        except BoundExceeded as error:
            raise PackError(f"the chat template, for a question of a word: {error} (model.chat_template)") from None
        except Exception:  # a template is a program
            return None

    @cached_property
    def _guarded_template(self) -> jinja2.Template | None:
        return compile_template_guarding_texts(self.source, self._date)

    def _question_text(self, content: Any) -> str:
        """Return the text of a question; empty: the template refuses it."""
        messages = normalize_messages_for_template(self.in_template_form([{"role": "user", "content": content}]))
        return self._probe_text(messages, add_generation_prompt=False) or ""


@contextmanager
def raise_if_template_reads_text() -> "Iterator[None]":
    """In this context, `Renderer.render` raises LooksAtText if the template does more with a text than to copy it."""
    token = _IS_GUARDED.set(True)
    try:
        yield
    finally:
        _IS_GUARDED.reset(token)


def _render_bounded(template: jinja2.Template, messages: list[Message], **variables: Any) -> str:
    """Render a template; raises BoundExceeded if it takes more memory, time or text than these messages can need."""
    contents = (message.get("content") for message in messages)
    num = sum(len(c) if isinstance(c, str) else sum(len(part.get("text", "")) for part in c or ()) for c in contents)
    num += _TURN_CHARACTERS * len(messages)
    with bounded_memory_and_time(_MAX_MEMORY_BYTES + 32 * num, _MAX_SECONDS):
        text = template.render(messages=messages, **variables)
    if len(text) > _MAX_CHARACTERS + 16 * num:
        raise BoundExceeded(f"it writes {len(text):,} characters of {num:,}")
    return text


def _as_parts(content: Any) -> Any:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _with_renamed_types(content: Any, types: Mapping[str, str]) -> Any:
    if isinstance(content, str):
        return content
    return [{**part, "type": types.get(part["type"], part["type"])} for part in content]


def _with_joined_texts(content: Any) -> Any:
    """Join text parts into one text; return content with other parts unchanged."""
    if isinstance(content, str) or any(part["type"] != "text" for part in content):
        return content
    return "".join(part["text"] for part in content)


def _with_objects(message: Message) -> Message:
    """Return a message whose tool calls have objects as arguments; arguments that are no JSON object stay text."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    return {**message, "tool_calls": list(map(_with_object, calls))}


def _with_object(call: Any) -> Any:
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        value = parse_json_or_skip(function["arguments"])
    except Skip:
        return call
    if not isinstance(value, dict):
        return call
    changed = {**function, "arguments": value}
    return {**call, "function": changed} if "function" in call else changed


def _advice_on_calls(messages: Sequence[Message]) -> str:
    """Return advice for a template that refuses a conversation, as gpt-oss', if a turn of it has several calls."""
    if not any(len(message.get("tool_calls") or ()) > 1 for message in messages):
        return ""
    return (
        " (a turn has several calls: source.map can give each a turn of its own, before its result; model.chat_template"
        "=FILE gives another template)"
    )
