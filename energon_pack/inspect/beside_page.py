"""Show two packed datasets side by side, in the terminal and as a page."""

from collections.abc import Sequence

from energon_pack.errors import amount
from energon_pack.inspect.beside import Alone, Side, figures, only_in, settings
from energon_pack.pages.html import Html, page, section, table, tag
from energon_pack.pages.svg import histogram
from energon_pack.report.shapes import linear_histogram
from energon_pack.run.console import print_table, say


def print_beside(left: Side, right: Side) -> None:
    """Print the figures, the settings that differ, and how many samples only one has."""
    for rows in (figures(left, right), settings(left, right)):
        print_table(rows)
        say("")
    for side, other in ((left, right), (right, left)):
        alone = only_in(side, other)
        say(f"only in {side.name}: {amount(alone.number, 'sample')}")
        for name, why in alone.first[:3]:
            say(f"  {name}: {why}")


def beside_page(left: Side, right: Side) -> str:
    """Show the same as a page, with how full the packs of each are."""
    differ = settings(left, right)
    return page(
        f"{left.name} beside {right.name}",
        tag("h1", f"{left.name} beside {right.name}"),
        tag("p", f"{left.opened.folder} · {right.opened.folder}", class_="faint"),
        section("What does each hold?", figures(left, right).to_html()),
        section("Which settings differ?", differ.to_html() if differ.rows else tag("p", "None.")),
        section("How full are their packs?", tag("div", *_fills(left, right), class_="pair")),
        section(
            "Which samples has only one of them?",
            *_alone(left, right, only_in(left, right)),
            *_alone(right, left, only_in(right, left)),
        ),
    )


def _fills(*sides: Side) -> list[Html]:
    shapes = [linear_histogram({"fill": side.fill}, most=100) for side in sides]
    return [
        tag(
            "div",
            tag("h3", side.name),
            histogram(shape.edges, shape.counts, "% of max_token_len", "packs", is_half=True),
        )
        for side, shape in zip(sides, shapes, strict=True)
        if shape
    ]


def _alone(side: Side, other: Side, alone: Alone) -> Sequence[Html]:
    title = tag("h3", f"Only in {side.name}: {alone.number:,}")
    if not alone.number:
        return [title]
    rows = [(tag("code", name), why) for name, why in alone.first]
    return [title, table(("sample", f"what {other.name} says of it"), rows, 2)]
