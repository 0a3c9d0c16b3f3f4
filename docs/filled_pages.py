"""Fills three pages while the site is built: a line `::: name name` becomes what the source says of these names.

docs/api.md gets docstrings of public names; the source is read, not imported, so that a site needs no torch.
docs/settings.md gets the keys below each node of the config, docs/formats.md the fields of report.json.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import energon_pack
from energon_pack.config.reference import Setting, all_settings

_PACKAGE = Path(energon_pack.__file__).parent
_SECTION = re.compile(r"^(Args|Raises|Returns|Yields):$")
_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """What mkdocs calls for each page."""
    fill = {"api.md": entries, "settings.md": table, "formats.md": fields}.get(page.file.src_uri)
    return markdown if fill is None else re.sub(r"^::: (.+)$", lambda line: fill(line[1].split()), markdown, flags=re.M)


def table(nodes: Sequence[str]) -> str:
    """The settings of these keys, or below these nodes, as a table."""
    rows = [one for node in nodes for one in all_settings() if f"{one.key}.".startswith(f"{node}.")]
    lines = [f"| `{one.key}` | `{one.default}` | {_cell(one)} |" for one in rows]
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *lines])


def fields(names: Sequence[str]) -> str:
    """The fields of these classes of the report, with the comments beside them, as a table."""
    rows = [f"| `{field}` | {meaning} |" for field, meaning in report_fields(names).items()]
    return "\n".join(["| field | what it holds |", "|---|---|", *rows])


def report_fields(names: Sequence[str]) -> dict[str, str]:
    """Return what the comment beside each field of these classes says; "" where there is none."""
    text = (_PACKAGE / "plan" / "report.py").read_text(encoding="utf-8")
    lines, found = text.splitlines(), dict[str, str]()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef) and node.name in names:
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    found[field.target.id] = lines[field.lineno - 1].partition("  # ")[2].replace("|", "\\|")
    return found


def _cell(setting: Setting) -> str:
    choices = setting.kind.split(" · ")
    kind = f"one of {', '.join(f'`{value}`' for value in choices)}" if choices[1:] else setting.kind
    values = [f"<br>`{value}`: {meaning}" for value, meaning in setting.values.items()]
    return f"{setting.meaning} ({kind}){''.join(values)}".replace("|", "\\|")


def entries(names: Sequence[str]) -> str:
    """The parts of the page about public names."""
    return "\n".join(map(entry, names))


def entry(name: str) -> str:
    """The part of the page about a public name."""
    home = _PACKAGE.parent / energon_pack._MODULE_OF[name].replace(".", "/")
    file = home / "__init__.py" if home.is_dir() else home.with_suffix(".py")
    tree = ast.parse(file.read_text(encoding="utf-8"))
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
