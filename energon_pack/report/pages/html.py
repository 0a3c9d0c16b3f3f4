"""Build pages of HTML: each is one self-contained file that needs no server and fetches nothing.

tag("p", "2 < 3") ─► <p>2 &lt; 3</p>          content that is not `Html` is escaped
"""

import base64
import html
import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

_EMPTY_ELEMENTS = {"br", "hr", "img", "input", "meta", "wbr"}  # elements without content and end tag
_CONTROL_SIGNS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
_CONTROL_SIGNS |= dict.fromkeys(
    (*range(0x80, 0xA0), *range(0xD800, 0xE000)), 0xFFFD
)  # found in names that are no UTF-8
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


def clipped(text: str, most: int) -> str:
    """Cut text to `most` characters, for a page that has to stay small."""
    return text if len(text) <= most else f"{text[:most]}…"


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
        "section", tag("h2", title, id=heading_id(title)), tag("p", says, class_="says") if says else None, *content
    )


def heading_id(title: str) -> str:
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
        tag("meta", http_equiv="Content-Security-Policy", content=CONTENT_POLICY),
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
CONTENT_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
