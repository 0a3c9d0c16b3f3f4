"""Compile a chat template so that it raises an error if it looks at a text instead of only copying it.

Its syntax tree is compiled a second time with a guard around the operands of each comparison, test, filter, call,
subscript and truth value. It is rendered with numbered texts (`with_texts_replaced_by_numbers`), so a value that
contains such a number is, or contains, a text. Texts that pass all guards were only written, joined, named or passed
on; then the template writes all other texts of that shape in the same way. Operations that the guards do not know count
as looking: of 95 published templates none needs more than these for its shortcut.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.visitor import NodeTransformer

from energon_pack.templates.chat.jinja import environment
from energon_pack.templates.chat.text_marks import AFTER_NUMBER, BEFORE_NUMBER

#: tests that check only the type of a value
_TYPE_TESTS = (
    *("string", "number", "integer", "float", "boolean", "none", "true", "false", "mapping", "sequence", "iterable"),
    *("defined", "undefined", "callable"),
)
#: filters that copy members of a list
_LIST_FILTERS = ("length", "count", "list", "first", "last", "reverse")
#: attributes of messages and parts that are not texts
_NON_TEXT_ATTRIBUTES = ("role", "type")
#: functions that only pass on their arguments
_FORWARDING_FUNCTIONS = frozenset(("namespace", "dict", "raise_exception", "caller"))
#: of these, those that make keys of the pairs in a list
_PAIR_FUNCTIONS = ("namespace", "dict")
#: functions that read their arguments
_READING_FUNCTIONS = frozenset(("range", "strftime_now"))
_KNOWN_NODES = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.Const, nodes.Name, nodes.NSRef, nodes.Scope, nodes.With),
    *(nodes.For, nodes.If, nodes.Macro, nodes.CallBlock, nodes.Assign, nodes.Break, nodes.Continue),
    *(nodes.Tuple, nodes.List, nodes.Dict, nodes.Pair, nodes.Keyword, nodes.CondExpr, nodes.Filter, nodes.Test),
    *(nodes.Call, nodes.Getitem, nodes.Getattr, nodes.Slice, nodes.Concat, nodes.Compare, nodes.Operand, nodes.And),
    *(nodes.Or, nodes.Not, nodes.Neg, nodes.Pos, nodes.BinExpr, nodes.ExtensionAttribute),
)


class TemplateReadsText(Exception):
    """A chat template does more with a text than copy it, or does something that this module does not know."""


def compile_template_guarding_texts(source: str, iso_date: str) -> jinja2.Template | None:
    """Compile a chat template that raises LooksAtText if it does more with a text than copy it; None: impossible."""
    jinja = environment(iso_date)
    jinja.filters.update(
        {_filter_name(guard): guard for guard in (_guard_textless, _guard_non_text, _guard_written, _guard_keys)}
    )
    tree = jinja.parse(source)
    try:
        return jinja.from_string(_GuardInserter(tree).visit(tree))
    except TemplateReadsText:
        return None


# ------------------------------------------------------------------------------------------------- guards of values


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and (BEFORE_NUMBER in value or AFTER_NUMBER in value)


def _holds_text(value: Any) -> bool:
    """Say whether a value contains a text; also true for opaque values."""
    if value is None or isinstance(value, (bool, int, float, jinja2.Undefined)):
        return False
    if isinstance(value, str):
        return _is_text(value)
    if isinstance(value, Mapping):
        return any(map(_holds_text, (*value.keys(), *value.values())))
    if isinstance(value, (list, tuple, range)):
        return any(map(_holds_text, value))
    return True


def _refuse_if(is_looked_at: bool, value: Any) -> Any:
    if is_looked_at:
        raise TemplateReadsText
    return value


def _guard_textless(value: Any) -> Any:
    """Guard a value that an operation reads completely: no text may be in it."""
    return _refuse_if(_holds_text(value), value)


def _guard_non_text(value: Any) -> Any:
    """Guard a value that must not be a text itself; texts inside a list or an object are allowed."""
    return _refuse_if(_is_text(value), value)


def _guard_written(value: Any) -> Any:
    """Guard a value that is written or joined: a text is allowed, but not a list of texts, which would be printed."""
    return _refuse_if(not isinstance(value, str) and _holds_text(value), value)


def _guard_keys(value: Any) -> Any:
    """Guard the right side of an `in` test: of an object, only the keys must be no texts."""
    return _refuse_if(_holds_text([*value] if isinstance(value, Mapping) else value), value)


# -------------------------------------------------------------------------------------------------- where they stand


#: by type of node, the operands that it looks at, each with its guard; `and` and `or` pass their right side on
_GUARD_OF_OPERAND: dict[type[nodes.Node], dict[str, Callable[[Any], Any]]] = {
    nodes.Output: {"nodes": _guard_written},
    nodes.Concat: {"nodes": _guard_written},
    nodes.If: {"test": _guard_non_text},
    nodes.CondExpr: {"test": _guard_non_text},
    nodes.Not: {"node": _guard_non_text},
    nodes.And: {"left": _guard_non_text},
    nodes.Or: {"left": _guard_non_text},
    nodes.Getattr: {"node": _guard_non_text},
    nodes.Getitem: {"node": _guard_non_text, "arg": _guard_textless},
    nodes.Slice: dict.fromkeys(("start", "stop", "step"), _guard_textless),
    nodes.Pair: {"key": _guard_textless},
    **dict.fromkeys(
        (nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Pow),  # joining by `+` is allowed
        dict.fromkeys(("left", "right"), _guard_textless),
    ),
}


class _GuardInserter(NodeTransformer):
    """Adds the guards to the syntax tree of a template."""

    def __init__(self, tree: nodes.Template):
        stored = {name.name for name in tree.find_all(nodes.Name) if name.ctx != "load"}
        self._hand_on = ({macro.name for macro in tree.find_all(nodes.Macro)} | _FORWARDING_FUNCTIONS) - stored
        self._read = _READING_FUNCTIONS - stored

    def generic_visit(self, node: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(node, _KNOWN_NODES):
            raise TemplateReadsText
        super().generic_visit(node, *args, **kwargs)
        for name, guard in _GUARD_OF_OPERAND.get(type(node), {}).items():
            value = getattr(node, name)
            setattr(node, name, [_guard(item, guard) for item in value] if name == "nodes" else _guard(value, guard))
        return node

    def visit_For(self, node: Any) -> Any:
        if node.recursive:  # `loop(…)` loops over its argument
            raise TemplateReadsText
        self.generic_visit(node)
        node.iter = _guard(node.iter, _guard_textless if _unpacks(node.target) else _guard_non_text)
        if node.test is not None:
            node.test = _guard(node.test, _guard_non_text)
        return node

    def visit_Assign(self, node: Any) -> Any:
        self.generic_visit(node)
        if _unpacks(node.target):
            node.node = _guard(node.node, _guard_non_text)
        return node

    def visit_Compare(self, node: Any) -> Any:
        self.generic_visit(node)
        is_with_none = any(isinstance(one, nodes.Const) and one.value is None for one in (node.expr, node.ops[0].expr))
        if len(node.ops) == 1 and is_with_none:  # a text is never none
            return node
        node.expr = _guard(node.expr, _guard_textless)
        for operand in node.ops:
            is_in = operand.op in ("in", "notin") and len(node.ops) == 1
            operand.expr = _guard(operand.expr, _guard_keys if is_in else _guard_textless)
        return node

    def visit_Test(self, node: Any) -> Any:
        self.generic_visit(node)
        return node if node.name in _TYPE_TESTS else _guard_operands(node)

    def visit_Filter(self, node: Any) -> Any:
        if node.node is None:  # the filter of a block
            raise TemplateReadsText
        self.generic_visit(node)
        if node.name in _LIST_FILTERS and not (node.args or node.kwargs):
            node.node = _guard(node.node, _guard_non_text)
            return node
        first = node.args[0].value if node.args and isinstance(node.args[0], nodes.Const) else None
        if node.name in ("selectattr", "rejectattr") and first in _NON_TEXT_ATTRIBUTES and not node.kwargs:  # LLaVA's
            node.node = _guard(node.node, _guard_non_text)  # else it goes through the characters of a text
            node.args = [_guard(item, _guard_textless) for item in node.args]
            return node
        return _guard_operands(node)

    def visit_Call(self, node: Any) -> Any:
        called = node.node
        self.generic_visit(node)
        if node.dyn_args is not None or node.dyn_kwargs is not None:
            raise TemplateReadsText
        if isinstance(called, nodes.Name) and called.name in self._hand_on:
            if called.name in _PAIR_FUNCTIONS:
                node.args = [_guard(item, _guard_keys) for item in node.args]
            return node
        if isinstance(called, nodes.Getattr):
            owner = called.node.node if isinstance(called.node, nodes.Filter) else None
            is_of_loop = isinstance(owner, nodes.Name) and owner.name == "loop"
            if called.attr != "get" and not is_of_loop:
                called.node = _guard(called.node, _guard_textless)
        elif not (isinstance(called, nodes.Name) and called.name in self._read) and not isinstance(
            called, nodes.ExtensionAttribute
        ):
            raise TemplateReadsText
        return _guard_operands(node, and_node=False)


def _unpacks(target: nodes.Node) -> bool:
    """Say whether an assignment splits a value into several names."""
    if not isinstance(target, nodes.Tuple):
        return False
    if not all(isinstance(item, (nodes.Name, nodes.NSRef)) for item in target.items):
        raise TemplateReadsText
    return True


def _guard_operands(node: Any, and_node: bool = True) -> Any:
    if and_node:
        node.node = _guard(node.node, _guard_textless)
    node.args = [_guard(item, _guard_textless) for item in node.args]
    for keyword in node.kwargs:
        keyword.value = _guard(keyword.value, _guard_textless)
    if node.dyn_args is not None or node.dyn_kwargs is not None:
        raise TemplateReadsText
    return node


def _filter_name(guard: Callable[[Any], Any]) -> str:
    """Return the name of a guard as a filter in the template."""
    return f"watched{guard.__name__}"


def _guard(node: Any, guard: Callable[[Any], Any]) -> Any:
    if node is None or isinstance(node, (nodes.Const, nodes.TemplateData, nodes.Slice)):
        return node
    return nodes.Filter(node, _filter_name(guard), [], [], None, None, lineno=node.lineno)
