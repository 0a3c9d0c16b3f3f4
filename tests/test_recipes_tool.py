"""`python -m energon_pack.recipes` writes what a wheel's user has no checkout for, and nothing over what is his."""

from pathlib import Path

import pytest

from energon_pack.errors import PackError
from energon_pack.recipes import files, main, write_recipes
from support.running import ROOT


def test_they_are_those_of_the_checkout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All that git has of them, and no more."""
    assert main([str(tmp_path)]) == 0
    assert f"written: {tmp_path / 'recipes'}, {tmp_path / 'constraints.txt'}" in capsys.readouterr().out
    kept = {
        path.relative_to(ROOT) for path in (ROOT / "recipes").rglob("*") if path.suffix in (".py", ".yaml", ".toml")
    }
    assert {path.relative_to(tmp_path) for path in tmp_path.rglob("*.*")} == kept | {Path("constraints.txt")}
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == "all of them are there\n"


def test_what_was_adapted_stays(tmp_path: Path) -> None:
    """Whoever changed a recipe and upgrades would lose his work."""
    mine = tmp_path / "recipes" / "train_ddp.py"
    mine.parent.mkdir()
    mine.write_text("mine")
    with pytest.raises(PackError, match=r"train_ddp\.py is there and differs from this version's"):
        write_recipes(tmp_path)
    assert list(tmp_path.rglob("*.*")) == [mine]
    assert mine.read_text() == "mine"


def test_each_is_listed_with_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + sum(name.suffix == ".py" for name in files())
    assert all(len(line.split(maxsplit=1)) == 2 for line in lines)
