"""Chat templates: the Jinja text of a processor, rendered as transformers renders it, without transformers.

Assistant turns are found by rendering a second time with a mark before and after each of their texts. A mark is a
Unicode noncharacter, so it can't be in real text, and the rendering without marks has to come out the same.
"""

import json
from typing import Any

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from energon_pack.sample import Message, Reason, Skip

OPEN, CLOSE = "\ufdd0", "\ufdd1"


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` blocks of training templates: their body, nothing else."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own name and type)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **kwargs: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **kwargs)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    # No strftime_now, though transformers offers it: lengths must not depend on the day they are measured.
    environment.globals["raise_exception"] = _raise_exception
    return environment


class ChatTemplate:
    """A compiled chat template with its fixed variables (`bos_token`, … and the user's `chat_template_kwargs`)."""

    def __init__(self, source: str, variables: dict[str, Any]):
        self._template = _environment().from_string(source)
        self._variables = {**variables, "add_generation_prompt": False}

    def render(self, messages: list[Message], tools: list[Any] | None) -> str:
        """One conversation as text; media are where their parts of the content stand.

        Raises:
            Skip: `processor_error` where the template refuses the conversation.
        """
        try:
            return self._template.render(messages=messages, tools=tools, **self._variables)
        except (
            jinja2.TemplateError,
            TypeError,
            ValueError,
            KeyError,
            AttributeError,
            RecursionError,
        ) as error:
            raise Skip(Reason.PROCESSOR_ERROR, f"chat template: {error}") from None

    def render_marked(self, messages: list[Message], tools: list[Any] | None) -> str:
        """As `render`, with `OPEN` and `CLOSE` around the text of each supervised turn.

        Raises:
            Skip: `processor_error`, also where the template changes the text of a turn.
        """
        plain = self.render(messages, tools)
        if OPEN in plain or CLOSE in plain:
            raise Skip(Reason.BAD_MESSAGE, "the text holds the noncharacter U+FDD0 or U+FDD1")
        marked = self.render([_mark(message) for message in messages], tools)
        if marked.replace(OPEN, "").replace(CLOSE, "") != plain:
            raise Skip(Reason.PROCESSOR_ERROR, "the chat template changes assistant text; no labels can be found")
        return marked


def _mark(message: Message) -> Message:
    if message["role"] != "assistant" or message.get("loss") is False or message.get("weight") == 0:
        return message
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": f"{OPEN}{content}{CLOSE}"}
    return {**message, "content": [{"type": "text", "text": OPEN}, *content, {"type": "text", "text": CLOSE}]}
