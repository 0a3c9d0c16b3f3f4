"""Pages contain their input, escaped, and load nothing from other files."""

from energon_pack.report.pages.html import Html, anchor, page, picture, section, table, tag


def test_what_is_not_markup_is_escaped() -> None:
    """A sample's text is anybody's: it must not become a script of the page."""
    assert tag("p", "2 < 3", tag("b", "&"), None) == "<p>2 &lt; 3<b>&amp;</b></p>"
    assert tag("a", href='"><script>', title=None, hidden=True) == '<a href="&quot;&gt;&lt;script&gt;" hidden></a>'


def test_any_text_can_be_written() -> None:
    """A name that is not UTF-8 contains lone surrogates; encoding them once ended a run after all its work."""
    assert tag("p", "a\udcff\x9b31m\x00b").encode() == "<p>a\ufffd\ufffd31m\u2400b</p>".encode()


def test_names_of_attributes() -> None:
    assert tag("td", class_="number") == '<td class="number"></td>'
    assert tag("text", "x", text_anchor="end") == '<text text-anchor="end">x</text>'
    assert tag("img", src="data:,") == '<img src="data:,">'


def test_numbers_of_a_table_stand_to_the_right() -> None:
    made = table(["", "packs"], [["text", 6]])
    assert '<td>text</td><td class="number">6</td>' in made
    assert '<th></th><th class="number">packs</th>' in made


def test_a_section_is_found_by_its_title() -> None:
    assert 'id="how-long-are-samples"' in section("How long are samples?")
    assert anchor("2. Fill & packs") == "2-fill-packs"


def test_sections_are_linked_at_the_top() -> None:
    """A reader of a long page did not know what is on it."""
    made = page("a", section("Token lengths"), section("In & out"))
    assert '<nav><a href="#token-lengths">Token lengths</a><a href="#in-out">In &amp; out</a></nav>' in made
    assert "<nav>" not in page("a", section("Jobs"))


def test_a_page_is_one_file() -> None:
    """A browser that asks elsewhere tells who looks at which data, and shows nothing on a node without network."""
    made = page("a < b", tag("h1", "a"), picture(b"\x00", "image/webp", "one"))
    assert made.startswith("<!DOCTYPE html>")
    assert "<title>a &lt; b</title>" in made
    assert 'src="data:image/webp;base64,AA=="' in made
    assert "http" not in made.replace("http-equiv", "")
    assert "<script" not in made
    assert "@import" not in made
    assert isinstance(tag("p"), Html)


def test_a_browser_is_told_that_a_page_fetches_and_runs_nothing() -> None:
    """All text is escaped; should some not be, it is shown and not run."""
    head = page("a").partition("<style>")[0]
    assert "Content-Security-Policy" in head
    assert "default-src &#x27;none&#x27;; img-src data:; style-src &#x27;unsafe-inline&#x27;" in head
    assert "script-src" not in head
