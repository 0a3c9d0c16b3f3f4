"""Show the results of a run: its page, the table of pack lengths, and what is wrong."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from energon_pack.config.stage_settings import PublishSettings
from energon_pack.dataset.files import PAGE
from energon_pack.dataset.publish_limits import (
    ledger_of_unpublished,
    page_of_unpublished,
    refuse_to_publish,
    refuse_unpublishable_plan,
    why_too_much_bad_data,
)
from energon_pack.dataset.skipped_file import ledger_entries, read_ledger
from energon_pack.errors import SamplesLost
from energon_pack.plan.pack_lengths import try_pack_lengths
from energon_pack.plan.packs import empty_plan
from energon_pack.plan.report import Report
from energon_pack.report.remark import Remark
from energon_pack.report.run_report import PageSummary, RunPageWriter
from energon_pack.report.terminal_summary import print_choices
from energon_pack.report.which_length import lengths_to_try_if_unset
from energon_pack.run.console import say
from energon_pack.run.files import naming_full_disk
from energon_pack.run.workshop import Workshop
from energon_pack.stages.measuring import Measured


def try_pack_lens(
    measured: Measured, page: RunPageWriter, path: Path, settings: PublishSettings, workshop: Workshop
) -> dict[str, Any]:
    """Print and write what packs of each length would drop and fill: the end of `stage=lengths`; return the figures.

    `path`: of the page.
    """
    packing = settings.packing
    with workshop.timed("plan"):
        lens = lengths_to_try_if_unset(settings.tried_lens, packing, measured.lengths.items, page.max_positions)
        choices = try_pack_lengths(measured.lengths, packing, lens, page.max_positions)
        page.add_choices(choices.lens)
    print_choices(choices, page.advice(choices.lens))
    refusal = why_too_much_bad_data(choices, settings.max_skipped)
    skipped = ledger_entries(measured.lengths, empty_plan(measured.lengths.items), packing)
    write_page(path, page, skipped, refusal)
    refuse_unpublishable_plan(refusal, path, choices)
    return choices.to_json()


def write_page(path: Path, page: RunPageWriter, skipped: Iterable[Mapping[str, Any]], refusal: str | None) -> None:
    """Write the page of a stage that publishes no dataset; `refusal`: why none could be published, or None."""
    with naming_full_disk("output.dir", path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        _print_page_summary(page.write(path, skipped, failed=refusal))
    say(f"see it: {path}")


def write_page_and_raise(final: Path, page: RunPageWriter, refusal: str, report: Report, skipped: Path) -> NoReturn:
    """Write the page of a run that publishes nothing, and keep its ledger (`skipped`); raises SamplesLost.

    `final`: the folder that the dataset would be in.
    """
    if not report.samples_in:
        raise SamplesLost(f"{refusal}: nothing is published")
    kept = ledger_of_unpublished(final)
    _print_page_summary(
        page.write(page_of_unpublished(final, PAGE), read_ledger(skipped), ledger_name=kept.name, failed=refusal)
    )
    refuse_to_publish(refusal, skipped, final, report)


def print_remarks(wrong: Iterable[Remark]) -> None:
    """Print a line for each remark about something that looks wrong."""
    for remark in wrong:
        say(f"wrong: {remark.what}: {remark.why}; {remark.knob}")


def _print_page_summary(seen: PageSummary) -> None:
    """Print examples of skipped samples, if the run publishes no ledger of them; then the remarks that are errors."""
    for reason, entries in seen.examples.items():
        say(f"first {reason}: {entries[0]['sample_id']}: {entries[0]['detail']}")
    print_remarks(seen.wrong)
