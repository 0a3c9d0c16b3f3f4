"""How large the house is: `python benchmarks/house.py [OTHER_TREE]`, one column a tree, the other one first.

Statements are counted without imports and docstrings. A name counts as a pronoun each time that it is bound: as a
variable, an argument, a function, a class or an attribute. Rings of files and arrows that run up are not counted:
tests/test_architecture.py allows none.
"""

import argparse
import ast
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import yaml
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent.parent
PRONOUNS = frozenset(
    (
        "found",
        "given",
        "of",
        "made",
        "wanted",
        "some",
        "left",
        "said",
        "own",
        "mine",
        "theirs",
        "others",
        "there",
        "at",
        "what",
    )
)


def parsed(folder: Path) -> dict[Path, ast.Module]:
    """Parse each Python file below a folder."""
    return {path: ast.parse(path.read_text()) for path in sorted(folder.rglob("*.py"))}


def num_lines(paths: Iterable[Path]) -> int:
    return sum(path.read_text().count("\n") for path in paths)


def is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def num_docstring_lines(tree: ast.Module) -> int:
    """Sum up the lines of a file's docstrings."""
    expressions = (node for node in ast.walk(tree) if isinstance(node, ast.Expr) and is_docstring(node))
    return sum((node.end_lineno or 0) - node.lineno + 1 for node in expressions)


def num_statements(tree: ast.Module) -> int:
    """Count statements that are neither imports nor docstrings."""
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.stmt))
    return sum(not isinstance(node, (ast.Import, ast.ImportFrom)) and not is_docstring(node) for node in nodes)


def bound_names(tree: ast.Module) -> Iterator[str]:
    """Yield each name that a file binds, once for each binding."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def function_lens(files: dict[Path, ast.Module]) -> list[tuple[int, str]]:
    """Return the lines of each function and its name, the longest first."""
    functions = (node for tree in files.values() for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return sorted(((node.end_lineno or 0) - node.lineno + 1, node.name) for node in functions)[::-1]


def takers(files: dict[Path, ast.Module], *names: str) -> list[str]:
    """Return the functions with a parameter whose annotation has one of these names."""
    functions = (node for tree in files.values() for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return [
        function.name
        for function in functions
        for argument in (*function.args.args, *function.args.kwonlyargs)
        if argument.annotation and any(name in ast.unparse(argument.annotation) for name in names)
    ]


def used_twice(names: Iterable[str]) -> int:
    return sum(number > 1 for number in Counter(names).values())


def measure(root: Path) -> dict[str, str]:
    """Return the rows of the table for a tree."""
    package, tests = root / "energon_pack", root / "tests"
    files = parsed(package)
    texts = {path: path.read_text() for path in files}
    trees = list(files.values())
    longest = max(files, key=lambda path: texts[path].count("\n"))
    function_len, function = function_lens(files)[0]
    rooms = {path.relative_to(package).parts[0] for path in files}
    classes = [node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    stems = [path.stem for path in files if path.stem not in ("__init__", "__main__")]
    docstrings = sum(num_docstring_lines(tree) for tree in trees)
    test_trees = parsed(tests)
    return {
        "lines of the package": f"{num_lines(files):,}",
        "statements": f"{sum(map(num_statements, trees)):,}",
        "lines of docstrings": f"{docstrings:,}",
        "modules": str(len(files)),
        "top rooms and files": str(len(rooms - {"__init__.py"})),
        "longest file": f"{texts[longest].count(chr(10))} {longest.relative_to(package)}",
        "files above 330 lines": str(sum(text.count("\n") > 330 for text in texts.values())),
        "longest function": f"{function_len} {function}",
        "functions that take the whole config, or a run that has it": str(len(takers(files, "PackConfig", "PackRun"))),
        "pack.py": str(texts.get(package / "pack.py", "").count("\n")),
        "is_address( in files": str(sum("is_address(" in text for text in texts.values())),
        "settings": str(num_leaves(yaml.safe_load(settings(root)))),
        "tests": f"{num_lines(test_trees):,} lines, {sum(map(num_statements, test_trees.values())):,} statements, "
        f"{len(test_trees)} modules",
        "package modules that tests import": str(len(modules_in(test_trees))),
        "pronouns as names": f"{sum(name in PRONOUNS for tree in trees for name in bound_names(tree)):,}",
        "file names used twice": str(used_twice(stems)),
        "class names used twice": str(used_twice(classes)),
    }


def modules_in(trees: dict[Path, ast.Module]) -> set[str]:
    """Return the modules of the package that some files import."""
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    modules = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    modules |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return {name for name in modules if name.startswith("energon_pack.")}


def settings(root: Path) -> str:
    """Return the settings of a run with their values, as `--cfg job` of a tree prints them."""
    command = [sys.executable, "-m", "energon_pack", "+model=qwen2_5_vl", "--cfg", "job"]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd="/").stdout


def num_leaves(node: object) -> int:
    return sum(map(num_leaves, node.values())) if isinstance(node, dict) and node else 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", nargs="?", type=Path, help="another checkout, shown first")
    options = parser.parse_args()
    roots = [*([options.other.resolve()] if options.other else []), HERE]
    columns = [measure(root) for root in roots]
    table = Table("", *(root.name for root in roots), box=None)
    for row in columns[0]:
        table.add_row(row, *(column[row] for column in columns))
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
