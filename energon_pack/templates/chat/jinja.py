"""Jinja as transformers sets it up for chat templates, without transformers."""

import json
import re
from typing import Any

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

#: the variable that holds what stands around each `{% generation %}` block
GENERATION_MARKS = "energon_pack_generation_marks"
_GENERATION = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` blocks of training templates: their body, between marks where the context asks for some."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own name and type)

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_marked", [jinja2.nodes.ContextReference()])
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _marked(self, context: jinja2.runtime.Context, caller: jinja2.runtime.Macro) -> str:
        body: str = caller()
        first, last = context.get(GENERATION_MARKS, ("", ""))
        return f"{first}{body}{last}"


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **kwargs: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **kwargs)


def environment() -> ImmutableSandboxedEnvironment:
    """Filters, globals and extensions that chat templates use."""
    jinja = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    jinja.filters["tojson"] = _tojson
    # No strftime_now, though transformers offers it: lengths must not depend on the day they are measured.
    jinja.globals["raise_exception"] = _raise_exception
    return jinja


def strings_in(source: str) -> set[str]:
    """The strings a template may compare texts with."""
    return {
        node.value for node in environment().parse(source).find_all(jinja2.nodes.Const) if isinstance(node.value, str)
    }


def generates(source: str) -> bool:
    """Whether a template says itself what is trained, in `{% generation %}` blocks."""
    return _GENERATION.search(source) is not None
