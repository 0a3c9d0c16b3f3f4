"""Fills docs/api.md while the site is built: a line `::: name name` becomes what the docstrings of these names say.

The source is read, not imported: a site needs neither torch nor a second of waiting.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import energon_pack

_PACKAGE = Path(energon_pack.__file__).parent
_SECTION = re.compile(r"^(Args|Raises|Returns|Yields):$")
_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """What mkdocs calls for each page."""
    if page.file.src_uri != "api.md":
        return markdown
    return re.sub(
        r"^::: (.+)$", lambda line: "\n".join([entry(n) for n in line[1].split()]), markdown, flags=re.MULTILINE
    )


def entry(name: str) -> str:
    """The part of the page about a public name."""
    home = energon_pack._HOME_OF[name]
    tree = ast.parse((_PACKAGE / f"{home.replace('.', '/')}.py").read_text(encoding="utf-8"))
    node = next(node for node in tree.body if getattr(node, "name", None) == name)
    assert isinstance(node, ast.ClassDef | _Function)
    return "\n".join(_described(node, name, "###"))


def _described(node: ast.ClassDef | _Function, name: str, level: str) -> Iterator[str]:
    yield f"{level} `{name}` {{ #{name} }}\n"
    yield f"```python\n{_signature(node, name)}\n```\n"
    yield _as_markdown(ast.get_docstring(node) or "")
    for method in node.body if isinstance(node, ast.ClassDef) else ():
        if isinstance(method, _Function) and not method.name.startswith("_") and ast.get_docstring(method):
            yield from _described(method, f"{name}.{method.name}", "####")


def _signature(node: ast.ClassDef | _Function, name: str) -> str:
    if isinstance(node, _Function):
        if any(isinstance(decorator, ast.Name) and decorator.id == "property" for decorator in node.decorator_list):
            return f"{name}: {ast.unparse(node.returns)}" if node.returns else name
        text = ast.unparse(node.args).removeprefix("self, ").removeprefix("self")
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        return f"{name}({text}){returns}"
    init = next((item for item in node.body if isinstance(item, _Function) and item.name == "__init__"), None)
    if init is not None:
        init.returns = None
        return _signature(init, name)
    fields = [item for item in node.body if isinstance(item, ast.AnnAssign)]
    return f"class {name}" + "".join(f"\n    {ast.unparse(field)}" for field in fields)


def _as_markdown(text: str) -> str:
    """A docstring, its sections as lists."""
    lines: list[str] = []
    in_section = False
    for line in text.splitlines():
        if found := _SECTION.match(line):
            lines += ["", f"**{found[1]}**", ""]
            in_section = True
        elif in_section and re.match(r" {4}\S", line):
            name, colon, rest = line.strip().partition(": ")
            is_named = colon and re.fullmatch(r"[\w*, ]+", name)
            lines.append(f"- `{name}`: {rest}" if is_named else f"- {line.strip()}")
        else:
            lines.append(f"  {line.strip()}" if in_section and line.strip() else line)
    return "\n".join(lines) + "\n"
