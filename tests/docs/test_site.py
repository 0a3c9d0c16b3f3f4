"""The pages of docs/ as a site: it builds without a warning, so every link leads somewhere; and nothing is fetched."""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

import energon_pack
from support.pages import DOCS, PAGES, prose
from support.running import ROOT, command


class Page(HTMLParser):
    """Anchors, and what a browser fetches by itself, of a page of the site."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.fetched: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if (tag == "link" and given.get("rel") not in ("canonical", "next", "prev")) or "src" in given:
            self.fetched.append(given.get("src") or given.get("href", ""))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Page]:
    """The built pages by their files; a link that leads nowhere is a warning, which ends a build that is not quiet."""
    pytest.importorskip("mkdocs", reason="the site needs mkdocs-material")
    folder = tmp_path_factory.mktemp("site").resolve()
    result = command("-m", "mkdocs", "build", "--strict", "--site-dir", folder, cwd=ROOT, NO_MKDOCS_2_WARNING="1")
    assert result.returncode == 0, result.stdout + result.stderr
    return {path: Page(path) for path in folder.rglob("*.html")}


def test_every_page_is_in_the_navigation() -> None:
    """Every page is in the navigation exactly once; readers could not find one that is missing."""

    def pages(entry: object) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        values = entry.values() if isinstance(entry, dict) else entry
        assert isinstance(values, (list, type({}.values())))
        return [page for value in values for page in pages(value)]

    listed = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert sorted(listed) == sorted(set(PAGES) - {"README.md"})


def test_public_names_have_their_docstrings(site: dict[Path, Page]) -> None:
    """The page is made from them while the site is built: a name without an entry could not be linked to."""
    (path,) = (path for path in site if path.name == "api.html")
    assert {*energon_pack.__all__, "Journal.add"} <= site[path].anchors
    assert ":::" not in path.read_text()


def test_a_browser_fetches_nothing_from_elsewhere(site: dict[Path, Page]) -> None:
    """The site works without a network, and reports its readers to nobody."""
    fetched = {link for page in site.values() for link in page.fetched}
    assert fetched
    assert [link for link in fetched if "//" in link] == []
    style = "".join(path.read_text() for path in DOCS.rglob("*.css"))
    assert "url(" not in style
    assert "@import" not in style


def test_links_of_the_readme_lead_somewhere() -> None:
    """It is no page of the site: its links are to files."""
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", prose("README.md")):
        assert (ROOT / target).exists(), target
        if target and not target.endswith(".md"):
            continue
        titles = re.findall(r"^#+ (.*)$", PAGES["README.md" if not target else target.removeprefix("docs/")], re.M)
        assert not anchor or anchor in {re.sub(r"[^\w\- ]", "", t.lower()).replace(" ", "-") for t in titles}


def test_addresses_elsewhere_are_whole() -> None:
    """They can't be fetched here: a scheme, a host with a dot, and no space is what can be looked at."""
    addresses = {address for page in PAGES for address in re.findall(r"\]\((\w+:[^)]*)\)", prose(page))}
    assert addresses
    for address in addresses:
        parts = urlsplit(address)
        assert parts.scheme == "https", address
        assert re.fullmatch(r"[\w-]+(\.[\w-]+)+", parts.netloc), address
        assert not re.search(r"\s", address), address


def test_every_picture_is_shown_and_says_what_it_shows() -> None:
    """To those who do not see it, too; and it is readable on paper and on a dark screen: it has its own background."""
    pictures = {path.name for path in (DOCS / "pictures").iterdir()}
    shown = {name for page in PAGES for name in re.findall(r"!\[[^\]]{20,}\]\([./\w]*pictures/([\w.]+)\)", PAGES[page])}
    assert shown == pictures
    assert max((DOCS / "pictures" / name).stat().st_size for name in pictures) <= 150_000
    for name in pictures:
        if name.endswith(".webp"):
            continue
        text = (DOCS / "pictures" / name).read_text()
        assert "<title>" in text
        assert 'class="paper"' in text
        assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
