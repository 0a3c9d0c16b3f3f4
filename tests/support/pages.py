"""README.md and the pages of docs/: their fenced blocks, tables, and what stands in code."""

import re
from dataclasses import dataclass

from support.running import ROOT

DOCS = ROOT / "docs"
#: by what links call them, from docs/; README.md beside them
PAGES = {
    "README.md": (ROOT / "README.md").read_text(),
    **{str(path.relative_to(DOCS)): path.read_text() for path in sorted(DOCS.rglob("*.md"))},
}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    language: str
    text: str
    #: whether it is all that stands between it and the block before
    follows: bool


def _blocks(page: str) -> list[Block]:
    between, *pieces = re.split(r"^```(.*)\n", PAGES[page], flags=re.MULTILINE)
    found = []
    for language, text, fence, after in zip(*(iter(pieces),) * 4, strict=True):
        assert fence == "", f"{page}: a fence is not closed"
        found.append(Block(page, language, text, not between.strip()))
        between = after
    return found


BLOCKS = [block for page in PAGES for block in _blocks(page)]


def blocks(language: str, page: str | None = None) -> list[str]:
    """The fenced blocks of a language."""
    return [block.text for block in BLOCKS if block.language == language and page in (None, block.page)]


def commands(text: str) -> list[str]:
    """The commands of a block of `sh`: lines that end with a backslash go on, comments are left out."""
    lines = text.replace("\\\n", " ").splitlines()
    return [line for line in (line.partition("  #")[0].strip() for line in lines) if line and line[0] != "#"]


def prose(page: str) -> str:
    """A page without its blocks."""
    return re.sub(r"^```.*?^```$", "", PAGES[page], flags=re.MULTILINE | re.DOTALL)


def code(text: str) -> list[str]:
    """Return the texts in backticks."""
    return re.findall("`([^`]+)`", text)


def table(page: str, header: str) -> list[list[str]]:
    """The rows of the table of a page that begins with these words, each a list of cells."""
    assert f"| {header}" in PAGES[page], header
    lines = PAGES[page].partition(f"| {header}")[2].splitlines()[2:]
    rows = lines[: next((i for i, line in enumerate(lines) if not line.startswith("|")), len(lines))]
    return [[cell.strip() for cell in row.strip("|").split(" |")] for row in rows]


def names(page: str, header: str) -> set[str]:
    """The code in the first column of a table."""
    return {name for row in table(page, header) for name in code(row[0])}


def section(page: str, title: str) -> str:
    """Return the text under a heading, up to the next one."""
    assert f"\n## {title}\n" in PAGES[page], title
    return PAGES[page].partition(f"\n## {title}\n")[2].partition("\n## ")[0]
