"""A page as a strict reader sees it."""

import json
import re
from html.parser import HTMLParser

from energon_pack.report.pages.html import script

_EMPTY = {"br", "hr", "img", "input", "meta"}
_BLOCKS = {"p", "div", "table", "section", "ul", "h1", "h2", "h3", "pre", "details"}


class _Strict(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text: list[str] = []
        self.data: dict[str, object] = {}  # blocks of JSON by their ids
        self._block = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        if len(names) != len(set(names)):
            self.wrong.append(f"<{tag}> has an attribute twice")
        if tag in _BLOCKS and self.open and self.open[-1] == "p":
            self.wrong.append(f"<{tag}> in <p>")
        self.wrong += [f"<{tag} {name}>" for name in names if name.startswith("on")]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "srcset", "action", "data")]
        self._block = dict(attrs).get("id") or ""
        if tag == "script" and names not in ([], ["type", "id"]):
            self.wrong.append(f"<script {names}>")
        if tag in ("link", "iframe", "object", "embed", "base", "form"):
            self.wrong.append(f"<{tag}>")
        if tag == "svg" and not {"role", "aria-label"} <= set(names):
            self.wrong.append("a chart without role and label")
        if tag == "img" and "alt" not in names:
            self.wrong.append("an image without alt")
        if tag not in _EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["script"] and self._block:
            self.data[self._block] = json.loads(data)
        elif self.open[-1:] == ["script"] and data != script():
            self.wrong.append(f"a script: {data[:80]}")
        elif not {"style", "script"} & set(self.open):
            self.text.append(data)


def data_of(page: str, name: str) -> object:
    """Return the data that a page's script reads."""
    return _read(page).data[name]


def _read(page: str) -> _Strict:
    reader = _Strict()
    reader.feed(page)
    reader.close()
    return reader


def check_page(page: str) -> str:
    """The text of a page that is well formed, needs nothing from elsewhere and runs nothing but the one script."""
    reader = _read(page)
    assert page.startswith("<!DOCTYPE html>")
    assert reader.wrong == []
    assert reader.open == []
    assert len(reader.ids) == len(set(reader.ids))
    elsewhere = [link for link in reader.links if not re.match(r"data:image/|#[\w-]+$|(?!//)[^:]*$", link)]
    assert elsewhere == []
    assert {link[1:] for link in reader.links if link.startswith("#")} <= set(reader.ids)
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    assert "url(" not in style
    assert "@import" not in style
    return " ".join(reader.text)
