"""Copy recipes of trainings, and the tested versions of packages: `python -m energon_pack.recipes [FOLDER]`

`recipes tiny PROCESSOR FOLDER` makes a tiny random model: it runs recipes/tiny_folder.py.

wheel: energon_pack/shipped/   ┐
checkout: recipes/             ┴─► FOLDER/recipes/*.py, FOLDER/constraints.txt
"""

import ast
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

from energon_pack.errors import PackError
from energon_pack.run.command import make_tool_parser, require_local_path, run_tool
from energon_pack.run.console import say

_PACKAGE = Path(__file__).parent
_RECIPES, _CONSTRAINTS = "recipes", "constraints.txt"
_EXTENSIONS = (".py", ".yaml", ".toml", ".txt")  # other files, as Python's caches, are not copied


def find_shipped_recipes_folder() -> Path:
    """Return the folder that holds the files to copy: in an installed wheel or in a checkout."""
    inside = _PACKAGE / "shipped"
    return inside if inside.is_dir() else _PACKAGE.parent


def recipe_files() -> Iterator[Path]:
    """Yield the paths of the files to copy, relative to `find_shipped_recipes_folder()`."""
    yield Path(_CONSTRAINTS)
    for path in sorted((find_shipped_recipes_folder() / _RECIPES).rglob("*")):
        if path.is_file() and path.suffix in _EXTENSIONS:
            yield path.relative_to(find_shipped_recipes_folder())


def write_recipes(folder: Path) -> int:
    """Copy the files into a folder; return how many were new. Raises PackError if one is there with other content."""
    new = []
    for name in recipe_files():
        content, path = (find_shipped_recipes_folder() / name).read_bytes(), folder / name
        if not path.is_file():
            new.append((path, content))
        elif path.read_bytes() != content:
            raise PackError(f"{path} is there and differs from this version's: give another folder, or move it away")
    for path, content in new:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return len(new)


def _first_doc_line(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] == ["tiny"]:
        runpy.run_path(str(find_shipped_recipes_folder() / _RECIPES / "tiny_folder.py"))["main"](words[1:])
        return 0
    about = "List the recipes (whole trainings to read and adapt), or copy them and constraints.txt into a folder."
    tool = make_tool_parser(
        "recipes", "[FOLDER | tiny PROCESSOR FOLDER]", about, examples=("", ".", "tiny PROCESSOR FOLDER")
    )
    tool.add_argument("folder", nargs="?", metavar="FOLDER", help="where recipes/ and constraints.txt are to be")
    options = tool.parse_args(arguments)
    if options.folder is None:
        for name in recipe_files():
            if name.suffix == ".py":
                say(f"{name!s:34}{_first_doc_line(find_shipped_recipes_folder() / name)}")
        say("python -m energon_pack.recipes . writes them here, and constraints.txt: the versions that were tested")
        return 0
    folder = require_local_path(options.folder)
    number = write_recipes(folder)
    say(f"{number} files written: {folder / _RECIPES}, {folder / _CONSTRAINTS}" if number else "all of them are there")
    return 0


if __name__ == "__main__":
    run_tool("recipes", main)
