"""What a run comes to: the figures of report.json, and the table at its end."""

import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table

from energon_pack.bins import Ints
from energon_pack.errors import PackError
from energon_pack.plan import MEDIA_TYPES, Lengths, PackingSettings, PackPlan
from energon_pack.progress import Progress
from energon_pack.sample import Reason

_UNKNOWN = "unknown"  # media type of samples that could not be read


def summarize(lengths: Lengths, plan: PackPlan, settings: PackingSettings, num_found: int) -> dict[str, Any]:
    """The figures of a plan, as report.json has them.

    Args:
        num_found: samples in the source, those that its settings leave out among them.

    Raises:
        PackError: samples_in is not packed + skipped. Never seen; nothing may be published then.
    """
    tokens = lengths.lens[plan.samples]
    packed_media = lengths.media[plan.samples]
    pack_media = _media_of_packs(packed_media, plan)
    tokens_of_pack = _per_pack(tokens, plan)
    visual = _per_pack(lengths.column("num_visual_tokens")[plan.samples], plan)
    cost = _per_pack(tokens**2, plan)

    reasons = Counter(lengths.table["reason"].drop_null().to_pylist())
    if plan.dropped.any():
        reasons[Reason.OVERLONG.value] = int(plan.dropped.sum())
    capacity = settings.max_token_len
    measured = pc.is_null(lengths.table["reason"])
    if lengths.num_samples != len(plan.samples) + sum(reasons.values()):
        raise PackError(f"{lengths.num_samples} samples, but {len(plan.samples)} packed and {reasons} skipped: a bug")
    return {
        "samples_in": lengths.num_samples,
        "samples_excluded": num_found - lengths.num_samples,
        "samples_packed": len(plan.samples),
        "samples_skipped": sum(reasons.values()),
        "parts": len(plan.samples),
        "skipped_by_reason": dict(sorted(reasons.items())),
        "packs": plan.num_packs,
        "packs_lower_bound": plan.lower_bound,
        "fill": _fill(tokens.sum(), plan.num_packs, capacity),
        "tokens": int(tokens.sum()),
        "num_supervised": int(lengths.column("num_supervised")[plan.samples].sum()),
        "samples_with_control_tokens": int(pc.sum(pc.greater(lengths.table["num_control_tokens"], 0)).as_py() or 0),
        **{
            f"samples_with_{column}": int(pc.sum(pc.and_(lengths.table[column], measured)).as_py() or 0)
            for column in ("placeholders_put_in", "placeholders_as_text", "tools_left_out")
        },
        "by_media": {
            name: {
                "samples_in": int((lengths.media == code).sum()),
                "samples": int((packed_media == code).sum()),
                "packs": int((pack_media == code).sum()),
                "tokens": int(tokens[packed_media == code].sum()),
                "fill": _fill(tokens_of_pack[pack_media == code].sum(), int((pack_media == code).sum()), capacity),
            }
            for code, name in [*enumerate(MEDIA_TYPES), (-1, _UNKNOWN)]
            if (lengths.media == code).any() or (pack_media == code).any()
        },
        "members_per_pack": _spread(np.diff(plan.starts)),
        "token_len": _spread(lengths.lens[lengths.lens > 0]),
        "visual_tokens_per_pack": _spread(visual),
        "attention_cost": {
            "mean": float(cost.mean()) if len(cost) else 0.0,
            "max": int(cost.max(initial=0)),
            "cv": float(cost.std() / cost.mean()) if len(cost) else 0.0,
        },
    }


def lost_modalities(figures: Mapping[str, Any]) -> list[str]:
    """Media types that are in the source and in no pack."""
    return [
        name
        for name, media in figures["by_media"].items()
        if name != _UNKNOWN and media["samples_in"] and not media["samples"]
    ]


def num_lost_to_bad_data(figures: Mapping[str, Any]) -> int:
    """Samples skipped for what is wrong with them, not by a policy of the settings."""
    return sum(n for reason, n in figures["skipped_by_reason"].items() if not Reason(reason).is_policy)


def print_plan(figures: Mapping[str, Any]) -> None:
    """Samples, packs and fill by media, what was skipped, and how long samples are."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for name in ("samples in", "packed", "skipped", "packs", "at least", "fill", "tokens"):
        table.add_column(name, justify="right")
    for name, media in figures["by_media"].items():
        skipped = media["samples_in"] - media["samples"]
        row = (media["samples_in"], media["samples"], skipped, media["packs"], "", media["fill"], media["tokens"])
        table.add_row(name, *_cells(row))
    keys = ("samples_in", "samples_packed", "samples_skipped", "packs", "packs_lower_bound", "fill", "tokens")
    table.add_row("total", *_cells(tuple(figures[key] for key in keys)), style="bold")
    console = _console()
    console.print(table)
    if figures["samples_excluded"]:
        console.print(f"excluded: {figures['samples_excluded']:,} by split, exclude or source.limit")
    for reason, number in figures["skipped_by_reason"].items():
        console.print(f"skipped: {number:,} {reason}")
    for what in ("control_tokens", "placeholders_put_in", "placeholders_as_text", "tools_left_out"):
        if number := figures[f"samples_with_{what}"]:
            console.print(f"noted: {number:,} samples with {what.replace('_', ' ')}")
    spread = ", ".join(f"{name} {value:,}" for name, value in figures["token_len"].items())
    console.print(f"tokens of a sample: {spread}")


def print_stages(progress: Progress) -> None:
    """Seconds and peak memory of each stage."""
    peaks = progress.peak_rss_bytes
    say("; ".join(f"{name} {s:.1f} s, {peaks[name] / 1e6:.0f} MB" for name, s in progress.seconds.items()))


def say(text: str) -> None:
    """A line on standard output, never broken."""
    _console().print(text, soft_wrap=True)


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else 120, highlight=False, markup=False, emoji=False)


def _cells(values: tuple[Any, ...]) -> Iterator[str]:
    for value in values:
        yield value if isinstance(value, str) else f"{value:.2%}" if isinstance(value, float) else f"{value:,}"


def _fill(tokens: Any, num_packs: int, capacity: int) -> float:
    return round(float(tokens) / (num_packs * capacity), 6) if num_packs else 0.0


def _per_pack(values: Ints, plan: PackPlan) -> Ints:
    return np.add.reduceat(values, plan.starts[:-1]) if plan.num_packs else np.zeros(0, np.int64)


def _media_of_packs(media: Ints, plan: PackPlan) -> Ints:
    """The media type of each pack: text and image make image, image and video make mix. The codes are bits."""
    return np.bitwise_or.reduceat(media, plan.starts[:-1]) if plan.num_packs else np.zeros(0, np.int64)


def _spread(values: Ints) -> dict[str, int]:
    if not len(values):
        return {}
    ranks = {"min": 0.0, "p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    ordered = np.sort(values)
    return {name: int(ordered[math.ceil(rank * (len(ordered) - 1))]) for name, rank in ranks.items()}
