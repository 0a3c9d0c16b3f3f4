"""Set up Jinja for chat templates as transformers does, without transformers."""

import json
import re
from datetime import date
from functools import lru_cache
from typing import Any

import jinja2
import jinja2.ext
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment

from energon_pack.templates.settings import DEFAULT_DATE

#: the variable with the marks to write around each `{% generation %}` block
GENERATION_MARKS_VARIABLE = "energon_pack_generation_marks"
_MAX_RESULT_BITS = 1 << 14
_GENERATION = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")


class _Generation(jinja2.ext.Extension):
    """Writes the body of `{% generation %}` blocks, between marks if the context has some."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own name and type)

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_write_block", [jinja2.nodes.ContextReference()])
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _write_block(self, context: jinja2.runtime.Context, caller: jinja2.runtime.Macro) -> str:
        body: str = caller()
        first, last = context.get(GENERATION_MARKS_VARIABLE, ("", ""))
        return f"{first}{body}{last}"


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, which also refuses arithmetic of endless numbers: nothing interrupts Python's `9**9**9`."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
            if bits > _MAX_RESULT_BITS:
                raise OverflowError(f"{operator} of numbers of more than {_MAX_RESULT_BITS:,} bits")
        return super().call_binop(context, operator, left, right)


class _SafeDict:
    """`dict` in a template: it can be called, but gives no access to Python's own."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args, **kwargs)


class _Namespace(jinja2.utils.Namespace):
    """`namespace` in a template: no name begins with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # as Jinja's, so that a name may be `self`
        self, args = args[0], args[1:]
        values = dict(*args, **kwargs)
        for name in values:
            _refuse_private(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"{name!r} of a namespace begins with an underscore")


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse_randomness(*args: Any, **kwargs: Any) -> None:
    raise jinja2.TemplateError("it writes by chance, and the same source has to give the same bytes")


def environment(today: str = DEFAULT_DATE) -> ImmutableSandboxedEnvironment:
    """Return an environment of Jinja like transformers' for chat templates; `today`: the ISO date of `strftime_now`."""
    jinja = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols])
    jinja.filters["tojson"] = _tojson
    jinja.globals["raise_exception"] = _raise_exception
    jinja.globals["strftime_now"] = date.fromisoformat(today).strftime
    jinja.filters["random"] = jinja.globals["lipsum"] = _refuse_randomness
    jinja.globals["dict"] = _SafeDict()
    jinja.globals["namespace"] = _Namespace
    return jinja


def template_writes_date(*template_sources: str) -> bool:
    """Say whether one of these chat templates, given as Jinja source, calls `strftime_now`, which writes the date."""
    return any("strftime_now" in source for source in template_sources)


@lru_cache
def variables_read_by_template(template_source: str) -> frozenset[str]:
    """Return the names of the variables that a chat template reads, except a conversation's (`messages`, `tools`)."""
    known = {*environment().globals, "messages", "tools", "add_generation_prompt"}
    return frozenset(find_undeclared_variables(environment().parse(template_source)) - known)


def has_generation_blocks(template_source: str) -> bool:
    """Say whether a chat template has `{% generation %}` blocks, which mark the trained text."""
    return _GENERATION.search(template_source) is not None
