"""CONTRIBUTING.md leads to files that are there: a list that was true once sends a newcomer astray."""

import re

from support.running import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text()
#: What somebody may want to add, in the words of its heading.
THINGS = ("a model family", "a flavour", "a cap", "a source", "a skip reason", "a batch key")


def test_there_is_a_list_for_whatever_one_may_add() -> None:
    headings = re.findall(r"^### (.*)$", PAGE, re.MULTILINE)
    assert [thing for thing in THINGS if not any(heading.startswith(thing) for heading in headings)] == []


def test_every_path_is_there_or_said_to_be_new() -> None:
    paths = re.findall(r"(new )?`((?:energon_pack|conf|tests|docs|benchmarks|recipes)/[\w./-]*)`", PAGE)
    assert len(paths) > 30
    wrong = [path for new, path in paths if not new and not (ROOT / path).exists()]
    assert wrong == []
    assert [path for new, path in paths if new and (ROOT / path).exists()] == []


def test_every_name_stands_in_a_file_of_its_step() -> None:
    """A step says in which file a table, a class or a function is: it is there, under that name."""
    steps = re.split(r"\n(?=\d+\. |\n|#)", PAGE.partition("## How to add")[2].partition("\n## ")[0])
    asked, wrong = 0, []
    for step in steps:
        quoted = [(new, text) for new, text in re.findall(r"(new )?`([^`\n]+)`", step)]
        files = [ROOT / text for new, text in quoted if not new and (ROOT / text).is_file()]
        names = [text.rpartition(".")[2] for _, text in quoted if re.fullmatch(r"[A-Za-z_][\w.]*", text)]
        named = [name for name in names if re.search("[A-Z_]", name) and name != "toml"]
        if files:
            asked += len(named)
            texts = "".join(file.read_text() for file in files)
            wrong += [name for name in named if name not in texts]
    assert asked > 30
    assert wrong == []


def test_the_order_of_rooms_is_the_tested_one() -> None:
    tested = (ROOT / "tests" / "test_architecture.py").read_text().partition('ORDER = """\n')[2].partition('"""')[0]
    shown = PAGE.partition("## The order of rooms")[2].partition("```\n")[2].partition("```")[0]
    assert [re.split(r"\s{2,}", line)[0] for line in shown.splitlines()] == tested.splitlines()
