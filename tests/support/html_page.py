"""A page as a strict reader sees it."""

import re
from html.parser import HTMLParser

_EMPTY = {"br", "hr", "img", "input", "meta", "wbr"}
_BLOCKS = {"p", "div", "table", "section", "ul", "h1", "h2", "h3", "pre", "details"}


class _Strict(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        if len(names) != len(set(names)):
            self.wrong.append(f"<{tag}> has an attribute twice")
        if tag in _BLOCKS and self.open and self.open[-1] == "p":
            self.wrong.append(f"<{tag}> in <p>")
        self.wrong += [f"<{tag} {name}>" for name in names if name.startswith("on")]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "srcset", "action", "data")]
        if tag in ("script", "link", "iframe", "object", "embed", "base", "form"):
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
        if "style" not in self.open:
            self.text.append(data)


def check_page(page: str) -> str:
    """The text of a page that is well formed, needs nothing from elsewhere and runs nothing."""
    reader = _Strict()
    reader.feed(page)
    reader.close()
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
