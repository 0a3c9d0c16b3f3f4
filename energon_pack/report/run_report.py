"""Collect the page of a run: started with the lengths, and written when the run ends or fails."""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from energon_pack.config import Stage
from energon_pack.config.stage_settings import PublishSettings
from energon_pack.lengths.method import Method
from energon_pack.plan.items import Lengths
from energon_pack.plan.pack_lengths import TriedLength
from energon_pack.plan.packs import PackPlan, empty_plan
from energon_pack.plan.report import Report, RunFacts
from energon_pack.report.advice import (
    advise_to_shrink_media,
    length_advice,
    lengths_trial_job_of,
    num_samples_tried,
    try_lengths_of_job,
)
from energon_pack.report.contact_sheet import (
    ContactSheetTile,
    ExamplePacksJob,
    choose_contact_sheet_tiles,
    choose_example_packs,
    draw_contact_sheet,
    draw_example_packs,
    read_tiles,
)
from energon_pack.report.figures import Figures, LengthTrials, count_outcomes_by_folder, planned_figures, source_figures
from energon_pack.report.page import PageFacts, build_run_page
from energon_pack.report.pages.html import Grade, Html, Remark
from energon_pack.report.remarks import collect_remarks
from energon_pack.run.files import write_atomically
from energon_pack.run.workshop import Workshop
from energon_pack.steps.cost import read_context_len
from energon_pack.templates.processor import media_rules_of, processor_folder_of

_MAX_EXAMPLES = 3  # examples of each reason
_MAX_PACK_BYTES = 200_000  # bytes of the sections that show packs


class PageSummary(NamedTuple):
    """What the terminal shows of a run's page: remarks that are errors, and examples of skipped samples."""

    #: some entries of the ledger, by reason
    examples: dict[str, list[Mapping[str, Any]]]
    wrong: list[Remark]


class RunPageWriter:
    """Collects the figures of a run while it goes on, and writes its page.

    Args:
        lengths: of the samples, before any is cut.
        num_repeated: how many draws took a sample that was drawn before.
        method: how samples were measured.
    """

    def __init__(
        self,
        settings: PublishSettings,
        processor: str,
        lengths: Lengths,
        num_repeated: int,
        method: Method,
        workshop: Workshop,
    ):
        self._settings, self._processor, self._workshop = settings, processor, workshop
        self._lengths, self._repeated, self._rules = lengths, num_repeated, media_rules_of(method.template_folder)
        #: most tokens of a sample that the model has positions for; None: not known
        self.max_positions = read_context_len(processor_folder_of(method.template_folder))
        #: results of pack lengths; a future: they are computed for some samples, while the run goes on
        self._choices: Sequence[TriedLength] | Future[list[TriedLength]] = []
        if settings.stage is not Stage.lengths:
            job = lengths_trial_job_of(lengths, settings.packing, settings.tried_lens, self.max_positions)
            self._choices = workshop.executor.start(try_lengths_of_job, job)
        self._method = method
        self._planned = lengths, empty_plan(lengths.items)
        self._of_plan: dict[str, Any] = {"origins": count_outcomes_by_folder(lengths, None)}

    def add_tried_lengths(self, tried_lengths: Sequence[TriedLength]) -> None:
        """Add what each pack length would drop and fill, planned with all samples, as `stage=lengths` does."""
        self._choices = tried_lengths

    def advise_on_pack_length(self, tried_lengths: Sequence[TriedLength]) -> list[str]:
        """Return lines that say which pack length to take, and which media to shrink first."""
        first = advise_to_shrink_media(self._lengths, self._rules, [choice.max_token_len for choice in tried_lengths])
        return [line for line in (str(first or ""), length_advice(tried_lengths)) if line]

    def add_plan(self, lengths: Lengths, plan: PackPlan, report: Report) -> None:
        """Add the plan, its figures, and the lengths that it was made of."""
        self._of_plan = planned_figures(lengths, plan, report, self._settings.packing)
        self._planned = lengths, plan

    def write(
        self,
        path: Path,
        ledger: Iterable[Mapping[str, Any]],
        facts: RunFacts | None = None,
        folder: str | None = None,
        ledger_name: str | None = None,
        failed: str | None = None,
        written: Path | None = None,
        stored: str | None = None,
    ) -> PageSummary:
        """Write the page to `path`.

        Args:
            ledger: entries of the skipped samples.
            facts: of a finished run; None: it is not finished.
            folder: path or address of the dataset, as Energon takes it; None: there is no dataset.
            ledger_name: the file that names all skipped samples.
            failed: why nothing is published.
            written: the folder that the packs are in now.
            stored: address of the folder with their shards, if they are elsewhere.
        """
        with self._workshop.progress.timed("report"):
            figures = self._figures()
            figures = replace(figures, examples=first_entries_by_reason(ledger, figures.ledger_counts))
            found = collect_remarks(figures, facts, self._settings.max_skipped)
            tiles = choose_contact_sheet_tiles(*self._planned, found)
            looked_at = (
                choose_sections_that_fit(self._shown_packs(written, stored, tiles), _MAX_PACK_BYTES) if written else {}
            )
            tiles = self._workshop.executor.result(
                self._workshop.executor.start(read_tiles, (tiles, self._settings.read))
            )
            title = self._settings.output.name or "run"
            about = PageFacts(self._settings.everything, title, self._processor, facts, folder, ledger_name, failed)
            contact_sheet = draw_contact_sheet(tiles, looked_at.keys())
            write_atomically(path, build_run_page(figures, about, found, [*looked_at.values()], contact_sheet).encode())
            return PageSummary(figures.examples, _errors_of(found))

    def wrong(self) -> list[Remark]:
        """Return the remarks that are errors, for a run that writes no page."""
        with self._workshop.progress.timed("report"):
            return _errors_of(collect_remarks(self._figures(), None, self._settings.max_skipped))

    def _figures(self) -> Figures:
        most = self._settings.packing.max_token_len
        source = source_figures(self._lengths, self._rules, most, self._repeated)
        tries = self._length_trials(int(np.count_nonzero(self._lengths.items.lens)))
        return Figures(
            max_token_len=most,
            source=source,
            length_trials=tries,
            demo=self._settings.is_demo,
            shrink_advice=advise_to_shrink_media(
                self._lengths, self._rules, [choice.max_token_len for choice in tries.choices]
            ),
            **self._of_plan,
        )

    def _length_trials(self, num_samples: int) -> LengthTrials:
        if isinstance(self._choices, Future):
            return LengthTrials(
                self._workshop.executor.result(self._choices), num_samples_tried(num_samples), num_samples
            )
        return LengthTrials([*self._choices], num_samples, num_samples)

    def _shown_packs(self, folder: Path, stored: str | None, tiles: Sequence[ContactSheetTile]) -> dict[int, Html]:
        """Draw the fullest pack, the emptiest and some others, and those with samples of the contact sheet."""
        flavor, most = self._settings.output.flavor, self._settings.packing.max_token_len
        lengths, plan = self._planned
        of_tiles = {tile.pack: f"of a sample on the sheet, {tile.kind}" for tile in tiles if tile.pack is not None}
        packs = choose_example_packs(lengths.items, plan)
        job = ExamplePacksJob(folder, flavor, packs | of_tiles | packs, self._method.template_folder, most, stored)
        return self._workshop.executor.result(self._workshop.executor.start(draw_example_packs, job))


def _errors_of(found: Sequence[Remark]) -> list[Remark]:
    return [remark for remark in found if remark.grade is Grade.wrong]


def choose_sections_that_fit(sections: Mapping[int, Html], max_bytes: int) -> dict[int, Html]:
    """Keep the sections, in order, that fit into `max_bytes` bytes together; skip one that is too large."""
    taken = {}
    for number, section in sections.items():
        size = len(section.encode())
        if size <= max_bytes:
            taken[number] = section
            max_bytes -= size
    return taken


def first_entries_by_reason(
    ledger: Iterable[Mapping[str, Any]], counts_by_reason: Mapping[str, int]
) -> dict[str, list[Mapping[str, Any]]]:
    """Return the first few ledger entries of each reason.

    Args:
        ledger: entries; read only until each reason has enough of them.
        counts_by_reason: how many entries each reason has.
    """
    missing = {reason: min(number, _MAX_EXAMPLES) for reason, number in counts_by_reason.items()}
    examples: dict[str, list[Mapping[str, Any]]] = {}
    for entry in ledger if any(missing.values()) else ():
        if missing.get(entry["reason"]):
            examples.setdefault(entry["reason"], []).append(entry)
            missing[entry["reason"]] -= 1
            if not any(missing.values()):
                break
    return examples
