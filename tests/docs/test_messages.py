"""The messages that troubleshooting.md quotes are the package's, so a user can search the page for a message."""

import ast
import re

import pytest

from energon_pack.plan.noted import NOTES
from support.pages import PAGES, code, table
from support.running import ROOT

PAGE = "troubleshooting.md"


def _text(node: ast.AST) -> str:
    """Return a message's text, with … for values."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else "…"
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(value) for value in node.values)
    if isinstance(node, ast.BinOp):
        return _text(node.left) + _text(node.right)
    return "…"


def _said() -> str:
    """All texts of the package, a line each."""
    texts = []
    for path in sorted((ROOT / "energon_pack").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr | ast.BinOp | ast.Constant) and (text := _text(node)) != "…":
                texts.append(re.sub(r"%[sd]", "…", " ".join(text.split())))
    return "\n".join(texts)


SAID = _said()
#: every table of messages of the page
QUOTED = [
    (message, row)
    for piece in PAGES[PAGE].split("| what it says ")[1:]
    for row in (line.strip("|").split(" |") for line in piece.splitlines()[2:] if line.startswith("|"))
    for message in code(row[0])
]


@pytest.mark.parametrize("message", [message for message, _ in QUOTED])
def test_a_message_that_is_quoted_is_one(message: str) -> None:
    pattern = ".*".join(re.escape(part) for part in message.split("…"))
    assert re.search(pattern, SAID), message


def test_messages_have_a_cause_or_something_to_do() -> None:
    assert len(QUOTED) > 80
    assert len({message for message, _ in QUOTED}) == len(QUOTED)
    assert [message for message, row in QUOTED if len(row) < 3 or not row[2].strip(" —")] == []


def test_every_note_is_explained() -> None:
    rows = table(PAGE, "samples with | what it means")
    assert [row[0] for row in rows] == [note.replace("_", " ") for note in NOTES]
