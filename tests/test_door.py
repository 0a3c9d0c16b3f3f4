"""The one door: what `from energon_pack import …` gives stays as it is, and users are told of nothing else.

After a change that is meant: `PYTHONPATH=.:tests python tests/test_door.py` writes tests/public_api.json anew.
"""

import inspect
import json
import re
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import pytest

import energon_pack
from support.pages import BLOCKS, PAGES
from support.running import ROOT, command

API = ROOT / "tests" / "public_api.json"
UPDATE = "if the change is meant: PYTHONPATH=.:tests python tests/test_door.py, and a line in CHANGELOG.md"


def signature(value: Any) -> str:
    """Parameters and their defaults, without annotations: these are spelled otherwise by each Python."""
    try:
        parameters = inspect.signature(value).parameters.values()
    except ValueError:  # an exception without arguments of its own
        return "(…)"
    own = [p.replace(annotation=p.empty) for p in parameters if not p.name.startswith("__")]  # without Energon's
    return re.sub(r" at 0x\w+", "", str(inspect.Signature(own)))


def described(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """A public name, and of a class its public methods and properties that this package defines."""
    yield name, signature(value)
    if inspect.isclass(value):
        for owner in reversed(value.__mro__):
            if owner.__module__.startswith("energon_pack."):
                for attribute, member in vars(owner).items():
                    if not attribute.startswith("_") and (callable(member) or isinstance(member, property)):
                        what = "property" if isinstance(member, property) else signature(member)
                        yield f"{name}.{attribute}", what


def public() -> dict[str, str]:
    return {key: text for name in energon_pack.__all__ for key, text in described(name, getattr(energon_pack, name))}


def test_the_public_api_is_the_one_that_was_promised() -> None:
    """A training imports these: a name that goes, or an argument that changes its place, breaks it."""
    before, now = json.loads(API.read_text()), public()
    gone = {key: before[key] for key in before if now.get(key) != before[key]}
    new = {key: now[key] for key in now if now[key] != before.get(key)}
    assert (gone, new) == ({}, {}), UPDATE


def test_every_public_name_says_what_it_is() -> None:
    assert [name for name in energon_pack.__all__ if not getattr(energon_pack, name).__doc__] == []
    assert set(energon_pack.__all__) <= set(dir(energon_pack))
    homes = {name: getattr(energon_pack, name).__module__ for name in energon_pack.__all__}
    assert vars(energon_pack)["_MODULE_OF"] == homes  # where its page is read
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        attrgetter("nothing")(energon_pack)


def test_a_function_and_the_file_of_its_name() -> None:
    """`import energon_pack.pack` by any other module would make `energon_pack.pack` a module, and a run fail."""
    script = (
        "import energon_pack.pack, energon_pack; from energon_pack import pack; print(pack.__name__, callable(pack))"
    )
    assert command("-c", script, cwd=ROOT).stdout == "pack True\n"


def test_the_door_opens_without_anything_behind_it() -> None:
    """Every Hydra application of an environment imports the package: it may not take a second."""
    heavy = "{'torch', 'transformers', 'hydra', 'numpy', 'yaml', 'importlib.metadata'}"
    script = f"import sys, energon_pack; print(sorted({heavy} & set(sys.modules)), len(dir(energon_pack)) > 40)"
    assert command("-S", "-c", script, cwd=ROOT).stdout == "[] True\n"


def test_users_are_told_of_the_door_alone() -> None:
    """README, docs and recipes import no module of the inside: those may move."""
    code = {f"{block.page}: {number}": block.text for number, block in enumerate(BLOCKS) if block.language == "python"}
    code |= {str(path.relative_to(ROOT)): path.read_text() for path in sorted((ROOT / "recipes").rglob("*.py"))}
    inside = re.compile(r"^\s*(?:from energon_pack\.\S+ import .*|import energon_pack\..*)$", re.MULTILINE)
    assert {where: found for where, text in code.items() if (found := inside.findall(text))} == {}
    asked = re.findall(r"from energon_pack import (?:\(([^)]*)\)|(.*))", "\n".join(code.values()))
    names = {name.strip() for both in asked for name in "".join(both).split(",")} - {""}
    assert len(names) > 20
    assert names <= set(energon_pack.__all__)


def test_the_page_of_public_names_has_each_once() -> None:
    """A name that is not there is found by nobody."""
    listed = " ".join(re.findall(r"^::: (.+)$", PAGES["api.md"], re.MULTILINE)).split()
    assert sorted(listed) == energon_pack.__all__


if __name__ == "__main__":
    API.write_text(json.dumps(public(), indent=1, ensure_ascii=False) + "\n")
