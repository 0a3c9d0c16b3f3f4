"""The page of a run: one file that says which length to take, whether anything is wrong, and what was lost and why."""

from collections.abc import Sequence
from dataclasses import dataclass

from energon_pack.config import PackConfig, Stage
from energon_pack.plan.report import RunFacts
from energon_pack.report import charts, overview, particulars
from energon_pack.report.figures import Figures
from energon_pack.report.grid import PackGrid, grid_section
from energon_pack.report.pages.html import Html, clipped, page, section, tag
from energon_pack.report.remarks import remarks
from energon_pack.report.views.view import Medium

_TITLE = 120  # characters


@dataclass(frozen=True)
class About:
    """Facts that a page shows beside its figures."""

    config: PackConfig  # the user's config
    title: str
    processor: str  # folder or hub id
    facts: RunFacts | None = None  # of a finished run
    folder: str | None = None  # the dataset's folder or address; None: there is no dataset
    ledger: str | None = None  # the file that names all skipped samples
    failed: str | None = None  # why nothing is published


def run_page(
    figures: Figures,
    about: About,
    looked_at: Sequence[Html] = (),
    grid: PackGrid | None = None,
    left_out: Sequence[Medium] = (),
) -> str:
    """Build the page as one HTML document.

    Args:
        looked_at: sections that show a few packs.
        grid: all packs as strips; None: nothing was planned.
        left_out: pictures of samples that the plan left out.
    """
    title = clipped(about.title, _TITLE)
    found = remarks(figures, about.facts, about.config.max_skipped)
    model = about.config.model
    said = f"stage={about.config.stage.value}, model {model.name}, processor {about.processor}"
    why = "Nothing is published: " if about.config.stage is Stage.all else "stage=all would publish nothing: "
    failed = tag("p", tag("b", why, class_="bad"), f"{clipped(about.failed, 3 * _TITLE)}.") if about.failed else None
    packs = section(
        "What is in a pack, and which of its tokens are trained on?",
        tag("div", *looked_at, class_="aside"),
        says="A few packs. Pictures are as they are stored.",
        name="a few packs",
    )
    strips = grid_section(grid, about.folder) if grid else None
    return page(
        f"{title} · energon_pack",
        tag("h1", title),
        tag("p", clipped(said, 3 * _TITLE), class_="faint"),
        failed or overview.verdict(found, about.folder is not None),
        overview.length(figures, found),
        overview.cards(figures),
        overview.to_look_at(found, about.config),
        overview.in_and_out(figures),
        charts.sample_lengths(figures),
        charts.pack_lengths(figures),
        charts.packs(figures),
        charts.over_time(figures),
        strips,
        particulars.skipped(figures, about.ledger, left_out),
        packs if looked_at else None,
        particulars.time(about.facts) if about.facts else None,
        particulars.settings(about.config, about.facts, about.processor, about.folder),
        has_script=strips is not None,
    )
