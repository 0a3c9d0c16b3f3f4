"""CONTRIBUTING.md leads to files that are there: a list that was true once sends a newcomer astray."""

import re

from support.running import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text()
#: what somebody may want to add, by the words of its row: all that a newcomer has to look at
ROWS = {
    row.split(" | ")[0].removeprefix("| "): row
    for row in PAGE.partition("| to add |")[2].splitlines()[2:]
    if row.startswith("| a")
}
PATHS = r"(?:energon_pack|conf|tests|docs|benchmarks|recipes)/[\w./-]*"


def test_there_is_a_row_for_whatever_one_may_add() -> None:
    assert {"a model family", "a flavour", "a cap", "a source", "a skip reason", "a batch key"} <= set(ROWS)
    for thing, row in ROWS.items():
        assert "`docs/" in row, thing
        assert "`tests/" in row, thing


def test_every_path_is_there() -> None:
    paths = re.findall(f"`({PATHS})`", PAGE)
    assert len(paths) > 30
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_name_stands_in_a_file_of_its_row() -> None:
    asked, wrong = 0, []
    for row in ROWS.values():
        texts = "".join(
            (ROOT / path).read_text() for path in re.findall(f"`({PATHS})`", row) if (ROOT / path).is_file()
        )
        named = [name for name in re.findall(r"`(\w+)`", row) if re.search("[A-Z_]", name)]
        asked += len(named)
        wrong += [name for name in named if name not in texts]
    assert asked > 20
    assert wrong == []


def test_the_order_of_rooms_is_the_tested_one() -> None:
    tested = (ROOT / "tests" / "test_architecture.py").read_text().partition('ORDER = """\n')[2].partition('"""')[0]
    shown = PAGE.partition("## The order of rooms")[2].partition("```\n")[2].partition("```")[0]
    assert [re.split(r"\s{2,}", line)[0] for line in shown.splitlines()] == tested.splitlines()
