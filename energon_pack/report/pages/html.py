"""Build pages of HTML, each one self-contained file, and tables and remarks that a terminal shows, too.

`tag` escapes content that is not `Html`:

    tag("p", "2 < 3") ─► <p>2 &lt; 3</p>

One `Rows` is a table of both:

    Rows(("medium", "packs"), [("text", "6")]) ─┬─ to_terminal(width) ─► a table of rich
                                                └─ to_html() ──────────► <table>
"""

import base64
import html
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from energon_pack.errors import amount, escape_unprintable
from energon_pack.run.console import console
from energon_pack.samples.keys import similar_key_hint

_EMPTY_ELEMENTS = {"br", "hr", "img", "input", "meta", "wbr"}  # elements without content and end tag
_CONTROL_SIGNS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
# found in names that are no UTF-8
_CONTROL_SIGNS |= dict.fromkeys((*range(0x80, 0xA0), *range(0xD800, 0xE000)), 0xFFFD)
_STYLE_FILE = Path(__file__).with_name("style.css")


class Html(str):
    """HTML markup: a str that is not escaped when it is put into an element."""

    __slots__ = ()


def tag(element: str, *content: Any, **attributes: Any) -> Html:
    """Build an HTML element; content that is not `Html` is escaped.

    Args:
        attributes: `class_` for class, `stroke_width` for stroke-width; None, False omit one; True writes its name.
    """
    texts = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        texts.append(f" {key}" if value is True else f' {key}="{html.escape(_printable(value))}"')
    start = f"<{element}{''.join(texts)}>"
    return Html(start if element in _EMPTY_ELEMENTS else f"{start}{join(content)}</{element}>")


def join(content: Iterable[Any]) -> Html:
    """Join pieces of content to markup; text is escaped, None adds nothing."""
    texts = (
        item if isinstance(item, Html) else html.escape(_printable(item), quote=False)
        for item in content
        if item is not None
    )
    return Html("".join(texts))


def clip_text(text: str, max_chars: int) -> str:
    """Cut text to `max_chars` characters, for a page that has to stay small."""
    return text if len(text) <= max_chars else f"{text[:max_chars]}…"


def _printable(value: Any) -> str:
    """Replace control characters and lone surrogates, which HTML can't hold, by visible signs."""
    return str(value).translate(_CONTROL_SIGNS)


def table(header: Sequence[Any], rows: Iterable[Sequence[Any]], num_words: int = 1, class_: str | None = None) -> Html:
    """Build an HTML table, which scrolls if it is wider than its page.

    Args:
        num_words: how many columns hold words. They come first; columns of numbers are aligned to the right.
    """

    def row(name: str, cells: Sequence[Any]) -> Html:
        kinds = (None if number < num_words else "number" for number in range(len(cells)))
        return tag("tr", *(tag(name, cell, class_=kind) for cell, kind in zip(cells, kinds, strict=True)))

    names = [Html(re.sub("(?<=[._])", tag("wbr"), join([name]))) for name in header]  # long names fold there
    body = join(row("td", cells) for cells in rows)
    whole = tag("table", tag("thead", row("th", names)), tag("tbody", body), class_=class_)
    return tag("div", whole, class_="scrolls")


def section(title: str, *content: Any, says: str | None = None) -> Html:
    """Build a section of a page: heading with an anchor, a grey sentence (`says`) below it, content."""
    return tag(
        "section", tag("h2", title, id=_heading_id(title)), tag("p", says, class_="says") if says else None, *content
    )


def _heading_id(title: str) -> str:
    """Return the id of a heading, for links: `Which length` is `which-length`."""
    return "-".join("".join(c if c.isalnum() else " " for c in title.lower()).split())


def details(summary: Any, *content: Any, is_open: bool = False) -> Html:
    """Build content that is hidden until a click; it is always printed."""
    return tag("details", tag("summary", summary), *content, open=is_open)


def picture(data: bytes, media_type: str, alt: str, **attributes: Any) -> Html:
    """Build an image that is embedded in the page."""
    source = f"data:{media_type};base64,{base64.b64encode(data).decode()}"
    return tag("img", src=source, alt=alt, **attributes)


def page(title: str, *content: Any) -> str:
    """Build a whole HTML document; if it has several sections, links to them stay in sight."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_CONTENT_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Html(_style())),
    )
    main = join(content)
    links = [tag("a", Html(text), href=f"#{name}") for name, text in re.findall('<h2 id="([^"]*)">(.*?)</h2>', main)]
    contents = tag("nav", *links) if len(links) > 1 else None
    return f"<!DOCTYPE html>\n{tag('html', head, tag('body', contents, tag('main', main)), lang='en')}\n"


@cache
def _style() -> str:
    return _STYLE_FILE.read_text("utf-8")


#: All text from data is escaped. The policy helps if some is not: a page holds words and names of strangers.
_CONTENT_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


_MIN_WORD_WIDTH = 16  # characters of a column of words, which is folded into them


class Cell(NamedTuple):
    """A cell of a table: its text for a terminal, and its markup for a page."""

    text: str
    html: Html


def code_cell(text: str) -> Cell:
    """Return a cell with a name from data, which a page shows in a monospaced font."""
    return Cell(text, tag("code", text))


@dataclass(frozen=True)
class Rows:
    """A table that a terminal and a page can show.

    Args:
        num_words: how many columns hold words. They come first; columns of numbers are aligned to the right.
        strong: numbers of the rows that are bold.
        faint: numbers of the rows that are grey.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    num_words: int = 1
    strong: Collection[int] = ()
    faint: Collection[int] = ()

    def to_html(self) -> Html:
        """Return the table as HTML."""
        return table(self.header, map(self._html_cells, range(len(self.rows)), self.rows), self.num_words)

    def _html_cells(self, number: int, row: Iterable[str | Cell]) -> list[str]:
        cells = [cell.html if isinstance(cell, Cell) else cell for cell in row]
        if number in self.faint:
            return [tag("span", cell, class_="faint") for cell in cells]
        return [tag("b", cell) for cell in cells] if number in self.strong else cells

    def to_terminal(self, width: int) -> Table:
        """Return the table for a terminal of `width` characters; if that is narrow, headers and words are folded."""
        drawn, least = Table(box=None, pad_edge=False, header_style="bold"), self._widths(str.split)
        is_wide = sum(self._widths(lambda name: [name])) + 2 * (len(self.header) - 1) <= width
        for number, name in enumerate(self.header):
            if number < self.num_words:
                drawn.add_column(escape_unprintable(name), overflow="fold")
            else:
                drawn.add_column(escape_unprintable(name), justify="right", width=None if is_wide else least[number])
        for number, row in enumerate(self.texts):
            drawn.add_row(*row, style="bold" if number in self.strong else "dim" if number in self.faint else None)
        return drawn

    @property
    def texts(self) -> list[list[str]]:
        """Return the text of each cell, row by row, printable on a terminal."""
        return [
            [escape_unprintable(cell.text if isinstance(cell, Cell) else cell) for cell in row] for row in self.rows
        ]

    @property
    def least_width(self) -> int:
        """Return how many characters wide a terminal must be to show every number in one line."""
        widths = self._widths(str.split)
        words = (min(width, _MIN_WORD_WIDTH) for width in widths[: self.num_words])
        return sum(words) + sum(widths[self.num_words :]) + 2 * (len(widths) - 1)

    def _widths(self, parts: Callable[[str], list[str]]) -> list[int]:
        """Return each column's width in characters: its longest cell, or the longest part of its name by `parts`."""
        names = (max(map(len, parts(name)), default=0) for name in self.header)
        return [max([name, *map(len, cells)]) for name, *cells in zip(names, *self.texts, strict=True)]


def print_table(rows: Rows) -> None:
    """Print a table; if the terminal is too narrow for it, print each row in words: no number is cut."""
    out = console()
    if rows.least_width <= out.width:
        out.print(rows.to_terminal(out.width))
        return
    for row in rows.texts:
        first, *rest = (f"{name} {cell}".strip() for name, cell in zip(rows.header, row, strict=True) if cell)
        out.print(f"{first}: {', '.join(rest)}")


_MAX_KEYS, _MAX_NAME_CHARS = 8, 120  # keys that are named, characters of a name


class Grade(str, Enum):
    """How urgent a remark is. `wrong`: cure it before training; `look`: probably not meant; `note`: good to know."""

    wrong = "wrong"
    look = "look"
    note = "note"


@dataclass(frozen=True)
class Remark:
    """Something that stands out in a run: a fact, why it matters, and the setting (`knob`) that changes it."""

    grade: Grade
    what: str  # what stands out, with its number
    why: str
    knob: str
    changes_lengths: bool = False  # the remedy makes samples longer or shorter
    #: the samples that it is about, of which the contact sheet shows one: a `Reason`, one of `NOTES` or `NAME_LISTS`,
    #: `untrained`, `without_features`, `most_visual`; empty: none in particular
    sample: str = ""


def share_of_samples(number: int, of: int, medium: str = "") -> str:
    """Write how many of `of` samples: `3 of 20 samples (15%)`, or `3 of 20 image samples (15%)`."""
    return f"{number:,} of {amount(of, f'{medium} sample'.strip())} ({percent(number, of)})"


def percent(number: float, of: float) -> str:
    """Write `number` as a share of `of` in percent; a share above zero is never shown as zero."""
    share = number / of if of else 0.0
    return f"{share:.0%}" if share >= 0.1 or not share else "under 0.01%" if share < 1e-4 else f"{share:.2%}"


def named_keys(keys: Mapping[str, Mapping[str, Any]]) -> str:
    """List some unknown keys of records as text; `keys`: key → number of `samples`, and one sample as `example`."""
    named = (
        f"{clip_text(key, _MAX_NAME_CHARS)} ({found['samples']:,}, as {found['example']}{similar_key_hint(key)})"
        for key, found in keys.items()
    )
    return f"{', '.join(islice(named, _MAX_KEYS))}{', …' * (len(keys) > _MAX_KEYS)}"
