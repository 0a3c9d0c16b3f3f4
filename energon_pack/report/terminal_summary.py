"""Print what a run comes to: its plan, the pack lengths it tried, and the time of its stages."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from energon_pack.errors import amount
from energon_pack.plan.epoch_draws import MANY_EPOCHS
from energon_pack.plan.pack_lengths import LengthFigures, TriedLength
from energon_pack.plan.report import LOST_BITS, STEP_COSTS, Report
from energon_pack.report.pages.bars import make_bar_cell
from energon_pack.report.pages.html import Cell, Rows, named_keys, print_table
from energon_pack.run.console import say
from energon_pack.run.progress import Progress
from energon_pack.samples.media.kinds import IMAGE, VIDEO
from energon_pack.samples.skip import Reason

_TOTAL_FIELDS = "samples_in", "samples_packed", "samples_skipped", "packs", "packs_lower_bound", "tokens"


def print_plan_summary(report: Report) -> None:
    """Print samples, packs and fill by media, what was skipped, and how long samples are."""
    notes = describe_suspicious_data(report.notes, report.image_modes, report.unknown_keys)
    print_table(tabulate_samples_by_medium(report))
    for line in (*lines_below_media_table(report), *_skipped_lines(report), *notes):
        say(line)
    if report.token_len:
        say(f"tokens of a sample: {_spread(report.token_len)}")


def lines_below_media_table(report: Report) -> Iterator[str]:
    """Yield the lines below the table of samples by medium: splits, a mixture, parts of samples, steps."""
    yield from _split_lines(report)
    yield from _sharing_and_mixture_lines(report)
    yield from cut_and_pair_lines(report)
    yield from _step_lines(report)


def tabulate_samples_by_medium(report: Report) -> Rows:
    """Return a table of what became of the samples of each medium, with a row for the total."""
    header = ("", "samples in", "packed", "skipped", "packs", "at least", "fill", "tokens")
    rows = [
        (name, *_counts_as_text(of.samples_in, of.samples, of.samples_in - of.samples, of.packs), "", f"{of.fill:.2%}",
         f"{of.tokens:,}")
        for name, of in report.by_media.items()
    ]  # fmt: skip
    *counts, tokens = _counts_as_text(*(getattr(report, key) for key in _TOTAL_FIELDS))
    return Rows(header, [*rows, ("total", *counts, f"{report.fill:.2%}", tokens)], strong={len(rows)})


def _counts_as_text(*numbers: int) -> Iterator[str]:
    return (f"{number:,}" for number in numbers)


def _spread(values: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {value:,}" for name, value in values.items())


def _split_lines(report: Report) -> Iterator[str]:
    """Yield a line for each split, and for each turn, if there are several."""
    splits = {f"split: {name}": of for name, of in report.by_split.items() if len(report.by_split) > 1}
    turns = {f"turn {number}:": of for number, of in enumerate(report.turns or (), 1)}
    for name, of in (splits | turns).items():
        packs = f"{amount(of['samples'], 'sample')} in {amount(of['packs'], 'pack')}"
        yield f"{name} {packs}, {amount(of['tokens'], 'token')}"


def _sharing_and_mixture_lines(report: Report) -> Iterator[str]:
    """Yield what was shared, the shares of a mixture, and how many samples were left out or drawn again."""
    if report.shared is not None:
        yield describe_shared_tokens(report.shared, report.tokens)
    for entry in report.mixture or ():
        asked = "" if entry["asked"] is None else f" (asked: {entry['asked']:.2%})"
        many = f": more than {MANY_EPOCHS:g} times" if entry["epochs"] > MANY_EPOCHS else ""
        drawn = f"{amount(entry['samples'], 'sample')}, each {entry['epochs']:.2f} times{many}"
        unit = "samples" if entry["share_of"] == "samples" else "trained tokens"
        yield f"mixture: {entry['name']} {entry['share']:.2%} of the {unit}{asked}, {drawn}"
    yield from removed_pictures_lines(report.removed)
    if report.samples_excluded:
        yield f"excluded: {report.samples_excluded:,} by split, exclude, sample_ratio, a mixture or source.limit"
    if report.samples_repeated:
        yield f"repeated: {amount(report.samples_repeated, 'draw')} by sample_ratio, a mixture or packing.epochs"


def removed_pictures_lines(removed: Mapping[str, int] | None) -> Iterator[str]:
    """Yield how many pictures lost their places; `removed` is `Report.removed`."""
    if removed:
        are = "is" if removed["pictures"] == 1 else "are"
        documents = amount(removed["documents"], "document")
        yield f"removed: {amount(removed['pictures'], 'picture')} that {are} missing, of {documents}"


def describe_shared_tokens(sharing: Mapping[str, int], num_tokens: int) -> str:
    """Describe in one line what `packing.share` saves; `sharing` is `Report.shared`, `num_tokens` those in packs."""
    if not sharing["trees"]:
        return "shared: nothing, no two samples of a group begin alike for packing.share_min_tokens tokens"
    media = [amount(sharing[m.plural], m.kind) for m in (IMAGE, VIDEO) if sharing[m.plural]]
    saved = " and ".join([amount(sharing["tokens"], "token"), *media])
    less = f"{(num_tokens + sharing['tokens']) / max(1, num_tokens):.2f} times fewer tokens"
    samples, trees = amount(sharing["samples"], "sample"), amount(sharing["trees"], "tree")
    return f"shared: {samples} in {trees}, {saved} less to compute: {less} in packs"


def _skipped_lines(report: Report) -> Iterator[str]:
    for reason, number in report.skipped_by_reason.items():
        tokens = report.tokens_left_out_by_reason.get(reason)
        with_tokens = f", {amount(tokens, 'token')}, {report.dropped_share(reason):.2%} of all" if tokens else ""
        yield f"skipped: {number:,} {reason}{with_tokens}"


def cut_and_pair_lines(report: Report) -> Iterator[str]:
    """Yield a line for expanded samples, for pairs, or for cut samples, and one for the tokens that were cut off."""
    if report.expanded:
        yield describe_expanded_samples(report.expanded, report.shared is not None)
    elif report.pairs is not None:
        yield f"{amount(report.pairs, 'preference pair')}, each with both sides in one pack"
    elif report.samples_cut:
        yield f"cut: {amount(report.samples_cut, 'sample')}, packed as their parts"
    if number := report.samples_cut_off:
        tokens = report.tokens_left_out_by_reason[Reason.CUT_OFF.value]
        of_all = f"{amount(tokens, 'token')}, {report.dropped_share(Reason.CUT_OFF.value):.2%} of all"
        yield f"cut off: {of_all}, of {amount(number, 'sample')}"


def describe_expanded_samples(expansion: Mapping[str, Any], is_shared: bool = False) -> str:
    """Describe in one line what `labels.expand` made, and its cost; `expansion` is `Report.expanded`."""
    times = expansion["tokens"] / max(1, expansion["whole_tokens"])
    became = f"{amount(expansion['conversations'], 'conversation')} became {amount(expansion['samples'], 'sample')}"
    shared = "" if is_shared else " (packing.share=prefix computes what they share once)"
    return f"labels.expand={expansion['how']}: {became}, {times:.2f} times the tokens{shared}"


#: the setting that helps, where a note is a loss
_CURES = {
    "reasoning_left_out": "labels.expand=turns trains thoughts of earlier answers",
    "words_left_out": "labels.template_drops=skip leaves these samples out",
}


def describe_suspicious_data(
    notes: Mapping[str, int], image_modes: Mapping[str, Mapping[str, Any]], unknown_keys: Mapping[str, Any]
) -> Iterator[str]:
    """Yield a line for each thing that the authors of samples may not have meant; arguments as in `Report`."""
    for note, number in notes.items():
        if number:
            cure = f" ({_CURES[note]})" if note in _CURES else ""
            yield f"noted: {amount(number, 'sample')} with {note.replace('_', ' ')}{cure}"
    for mode, of_mode in image_modes.items():
        samples = f"{amount(of_mode['samples'], 'sample')} with images of mode {mode}, as {of_mode['example']}"
        yield f"noted: {samples}: {LOST_BITS}"
    if unknown_keys:
        yield f"unknown keys (samples, as in): {named_keys(unknown_keys)}; nothing reads them"


def _step_lines(report: Report) -> Iterator[str]:
    """Yield how many more packs `packing.window` takes, and how long ranks wait, if packs were ordered for steps."""
    if report.packs_without_window is not None:
        yield f"window: {amount(report.packs, 'pack')}, {report.packs_without_window:,} without packing.window"
    if not report.steps:
        return
    ordered, without, split = (report.steps[name] for name in ("in_order", "without", "split"))
    if not ordered["steps"]:
        yield f"steps: none is whole, for {ordered['left_over']:,} packs of {split} are fewer than a step has"
        return
    beside = "(without layout; at least)"
    yield f"steps: {ordered['steps']:,} of {split}; 1 is the time of an epoch without waiting {beside}"
    costs = [
        f"{what} {ordered[name]['epoch']:.3f} ({without[name]['epoch']:.3f}; {ordered[name]['bound']:.3f})"
        for name, what in STEP_COSTS.items()
    ]
    yield f"steps: {', '.join(costs)}"
    trained, before = ordered["trained"], without["trained"]["worst"]
    off = f"{trained['worst']:.1%} ({before:.1%}; {trained['bound']:.1%})"
    yield f"steps: trained tokens of a step are off the mean by up to {off}"


def print_tried_lengths(figures: LengthFigures, advice: Sequence[str] = ()) -> None:
    """Print how long samples are, what each pack length would drop and fill, and which to take."""
    counts = f"{amount(figures.samples_measured, 'sample')}, {amount(figures.tokens, 'token')}"
    say(
        f"{counts}; of a sample: {_spread(figures.token_len)}" if figures.samples_measured else "no sample has a length"
    )
    for reason, number in figures.skipped_by_reason.items():
        say(f"skipped: {number:,} {reason}")
    if not figures.samples_measured:
        return
    print_table(length_rows(figures.lens))
    if beyond := [row.max_token_len for row in figures.lens if row.is_beyond_model]:
        say(f"the model has no positions for samples of {min(beyond):,} tokens: config.json, max_position_embeddings")
    for line in advice:
        say(line)


def length_rows(choices: Sequence[TriedLength], marks: Mapping[int, str] | None = None) -> Rows:
    """Return a table of what each pack length would drop, and how full its packs would be.

    Args:
        marks: pack length → words beside it; the last one is recommended, and bold. None: no column for them.
    """
    header = ("packing.max_token_len", *[""] * bool(marks), "dropped", "of samples", "of tokens", "packs", "fill")
    rows: list[tuple[str | Cell, ...]] = [
        (
            f"{row.max_token_len:,}",
            *([marks.get(row.max_token_len, "")] if marks else []),
            f"{row.dropped:,}",
            f"{row.dropped_share:.2%}",
            make_bar_cell(f"{row.dropped_tokens_share:.2%}", row.dropped_tokens_share),
            f"{row.packs:,}",
            make_bar_cell(f"{row.fill:.2%}", row.fill),
        )
        for row in choices
    ]
    recommended = [*marks][-1] if marks else None
    strong = {number for number, row in enumerate(choices) if row.max_token_len == recommended}
    return Rows(header, rows, num_words=2 * bool(marks), strong=strong)


def print_stage_times_and_memory(progress: Progress) -> None:
    """Print seconds and peak memory of each stage; on a terminal, which has shown the stages, only the totals."""
    peaks = progress.peak_rss_bytes
    if progress.is_live and sys.stdout.isatty():
        most = max(peaks, key=peaks.__getitem__)
        say(f"{sum(progress.seconds.values()):.1f} s in all, at most {peaks[most] / 1e6:,.0f} MB of memory ({most})")
        return
    say("; ".join(f"{name} {s:.1f} s, {peaks[name] / 1e6:.0f} MB" for name, s in progress.seconds.items()))
