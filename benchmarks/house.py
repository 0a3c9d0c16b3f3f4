"""How large the house is: `python benchmarks/house.py [OTHER_TREE]`, one column a tree, the other one first.

Statements are counted without imports and docstrings. A name counts as a pronoun each time that it is bound: as a
variable, an argument, a function, a class or an attribute. Rings of files and arrows that run up are not counted:
tests/test_architecture.py allows none. `--walks` also runs each tree: of the packing of the demo, of its plan in
memory for a lazy dataset, and of one batch, the files whose functions ran, and the climbs: pairs of files of which the
first called the second, though the second imports the first, itself or through others.
"""

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType

import yaml
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent.parent
WALKS = "packing", "a lazy dataset", "a batch"
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


def walk(name: str) -> None:
    """Print, as JSON, the pairs of files of which the first called the second, of one of `WALKS` in this folder."""
    import energon_pack
    from energon_pack import LazyPackedDataset, PackedDataset
    from energon_pack.config.compose import compose_config
    from energon_pack.pack import pack

    overrides = ["+model=qwen2_5_vl", "executor.num_workers=1", "measure.verify=1", "output.overwrite=true"]
    config = compose_config([*overrides, "output.name=packs"])
    packs = PackedDataset("packed/packs", "packed/.cache/demo/v1/processor") if name == "a batch" else None
    package = str(Path(energon_pack.__file__).parent)
    calls: set[tuple[str, str]] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        called, caller = frame.f_code.co_filename, frame.f_back
        if event == "call" and called.startswith(package):
            while caller is not None and not caller.f_code.co_filename.startswith(package):
                caller = caller.f_back  # a library calls it for us
            calls.add((caller.f_code.co_filename if caller else called, called))

    sys.setprofile(note)
    if name == "packing":
        pack(config)
    elif name == "a lazy dataset":
        source = ["source.path=packed/.cache/demo/v1/source", "model.processor=packed/.cache/demo/v1/processor"]
        LazyPackedDataset([*overrides, *source])
    elif packs is not None:
        packs.collate([packs[0]])
    sys.setprofile(None)
    print(json.dumps([[str(Path(path).relative_to(package)) for path in pair] for pair in sorted(calls)]))


def walks_of(root: Path) -> dict[str, str]:
    """Return the rows of the table that show what runs in a tree."""
    rows = {}
    above = files_above(root / "energon_pack")
    with tempfile.TemporaryDirectory() as folder:
        for name in WALKS:
            command = [sys.executable, __file__, "--walk", name]
            environment = {**os.environ, "PYTHONPATH": str(root), "XDG_CACHE_HOME": folder}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=folder)
            if done.returncode:
                raise SystemExit(f"{root}: {name}: {done.stderr[-900:]}")
            pairs = json.loads(done.stdout.splitlines()[-1])
            climbs = [(one, other) for one, other in pairs if other in above[one]]
            rows[f"{name}: files, climbs"] = f"{len({other for _, other in pairs})}, {len(climbs)}"
    return rows


def files_above(package: Path) -> dict[str, set[str]]:
    """Return, for each file of a package, the files that import it, themselves or through others."""
    names = {
        ".".join((package.name, *path.relative_to(package).with_suffix("").parts)): path for path in parsed(package)
    }
    files = {name.removesuffix(".__init__"): str(path.relative_to(package)) for name, path in names.items()}
    above: dict[str, set[str]] = {file: set() for file in files.values()}
    for path, tree in parsed(package).items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                    if name in files:
                        above[files[name]].add(str(path.relative_to(package)))
    while any([grown(own, above) for own in above.values()]):
        pass
    return above


def grown(own: set[str], above: dict[str, set[str]]) -> bool:
    """Add to some files those that import them; return whether any was added."""
    before = len(own)
    own |= set().union(*(above[file] for file in own))
    return len(own) > before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", nargs="?", type=Path, help="another checkout, shown first")
    parser.add_argument("--walks", action="store_true", help="also run each tree")
    parser.add_argument("--walk", choices=WALKS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.walk:
        walk(options.walk)
        return
    roots = [*([options.other.resolve()] if options.other else []), HERE]
    columns = [measure(root) | (walks_of(root) if options.walks else {}) for root in roots]
    table = Table("", *(root.name for root in roots), box=None)
    for row in columns[0]:
        table.add_row(row, *(column[row] for column in columns))
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
