"""Compare the jobs of a sweep, and choose the best by stated rules."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from energon_pack.plan.pack_lengths import TriedLength
from energon_pack.report.advice import MOST_DROPPED, recommend_length
from energon_pack.report.sweep_folder import read_sweep_jobs

#: written by Hydra's sweepers that optimise (Optuna's, Ax's, Nevergrad's)
_OPTIMISED_FILE = "optimization_results.yaml"
_NEARLY_LEAST = 1.01  # times the least cost of a token


@dataclass(frozen=True)
class JobFigures:
    """The settings and figures of one job of a sweep. None in a field: the job's stage does not compute it."""

    number: int
    settings: dict[str, str]  # the settings that differ between the jobs
    page: str | None
    max_token_len: int
    samples: int  # samples that went in
    dropped: int
    dropped_tokens_share: float
    max_dropped_tokens: float  # `packing.max_dropped_tokens`, whatever `packing.overlong` is
    packs: int
    fill: float
    tokens: int  # in packs
    attention_cost: float | None = None  # Σ len² over all packs
    flops: float | None = None  # of an epoch's forward passes, waiting included
    cost_source: str | None = None
    num_bytes: int | None = None  # bytes that were written
    time: float | None = None  # of an epoch, relative to the best job's
    time_of_token: float | None = None  # time of a token in packs, relative to the best job's
    refused: str | None = None  # why nothing of it is published; None: it is

    @property
    def may_be_best(self) -> bool:
        """Whether the job packed something, dropped no more than `packing.max_dropped_tokens`, and is published."""
        return self.packs > 0 and self.dropped_tokens_share <= self.max_dropped_tokens and self.refused is None

    @property
    def flops_per_token(self) -> float:
        """FLOPs of a token in packs; 0: unknown."""
        return (self.flops or 0.0) / max(self.tokens, 1)


@dataclass(frozen=True)
class FailedJob:
    """A job of a sweep that ended with an error, and without figures."""

    number: int
    settings: dict[str, str]
    error: str
    page: str | None


@dataclass(frozen=True)
class Sweep:
    """The results of all jobs of a sweep, and which job is the best."""

    keys: list[str]  # settings that differ between the jobs
    rows: list[JobFigures]
    failed: list[FailedJob]
    is_optimised: bool = False  # the sweeper names the best job, by `report.objective`

    @property
    def has_several_models(self) -> bool:
        """Whether the jobs have different models, whose tokens and times can't be compared."""
        return not {"model", "model.name", "model.processor", "model.revision"}.isdisjoint(self.keys)

    @property
    def best(self) -> JobFigures | None:
        """Return the best job by the rule `BEST_RULE`; None: the rule does not decide, or no job may be it."""
        rows = [row for row in self.rows if row.may_be_best and not (self.has_several_models or self.is_optimised)]
        keeping = [row for row in rows if row.dropped_tokens_share <= MOST_DROPPED]
        if not keeping:
            return min(rows, key=lambda row: row.dropped_tokens_share, default=None)
        least = min(row.flops_per_token for row in keeping)
        return max((row for row in keeping if row.flops_per_token <= _NEARLY_LEAST * least), key=lambda row: row.fill)

    @property
    def why_no_best(self) -> str:
        """Return the words that say why no job is the best."""
        if self.is_optimised:
            return f"the sweeper chose by report.objective, and {_OPTIMISED_FILE} names its best"
        if self.has_several_models:
            return "each model has tokens of its own, and the fewest are not the best"
        if not any(row.packs for row in self.rows):
            return "none packed anything"
        return "each drops more of the tokens than its packing.max_dropped_tokens"

    def to_json(self) -> dict[str, Any]:
        """Return the content of sweep.json."""
        best = self.best
        figures = {name: value for name, value in asdict(self).items() if name != "is_optimised"}
        return {"format": 1, "best": best.number if best else None, **figures}


BEST_RULE = (
    f"of the jobs that drop at most {MOST_DROPPED:.0%} of the tokens, those whose time a token is within 1% of the"
    " least, and of these the fullest; where none drops so little, the one that drops least, if that is at most its"
    " packing.max_dropped_tokens"
)


def read_sweep(folder: Path) -> Sweep:
    """Read the results that the jobs of a sweep left in its folder."""
    jobs = read_sweep_jobs(folder)
    keys = sorted({key for job in jobs for key in job["settings"]})
    keys = [key for key in keys if len({job["settings"].get(key) for job in jobs}) > 1]
    failed, rows = [], []
    for job in jobs:
        settings = {key: job["settings"].get(key, "") for key in keys}
        figures = job.get("figures")
        if figures and _is_whole(figures):
            rows.append(_row(job, settings))
        elif job["error"] is not None:
            failed.append(FailedJob(job["number"], settings, job["error"], job.get("page")))
    sweep = Sweep(keys, rows, failed, (folder / _OPTIMISED_FILE).exists())
    return sweep if sweep.has_several_models else replace(sweep, rows=_with_times(sweep))


def _is_whole(figures: Mapping[str, Any]) -> bool:
    """Whether a job has figures of all samples: it has none if it did a part of a stage, or left it to Slurm."""
    return "lens" in figures or "tokens_left_out" in figures


def _row(job: Mapping[str, Any], settings: dict[str, str]) -> JobFigures:
    figures, keys = job["figures"], ("number", "page", "max_dropped_tokens")
    about = {"settings": settings, "refused": job.get("error"), **{key: job[key] for key in keys}}
    about["samples"] = figures["samples_in"]
    if "lens" in figures:
        return _row_of_lengths_stage(figures, about)
    out = figures["tokens_left_out"]
    flops, steps = figures["flops"], figures.get("steps")
    waiting = steps["in_order"]["both"]["epoch"] if steps and steps["in_order"]["steps"] else 1.0
    return JobFigures(
        **about,
        max_token_len=figures["max_token_len"],
        dropped=figures["samples_skipped"],
        dropped_tokens_share=out / max(1, out + figures["tokens"]),
        packs=figures["packs"],
        fill=figures["fill"],
        tokens=figures["tokens"],
        attention_cost=figures["attention_cost"]["mean"] * figures["packs"],
        flops=(flops["weights"] + flops["attention"] + flops["vision"]) * waiting,
        cost_source=flops["source"],
        num_bytes=figures.get("bytes_written"),
    )


def _row_of_lengths_stage(figures: Mapping[str, Any], about: Mapping[str, Any]) -> JobFigures:
    """Return the row of a job with `stage=lengths`, with the figures of the recommended pack length."""
    choices = [TriedLength(**choice) for choice in figures["lens"]]
    found = recommend_length(choices)
    best = found.choice if found else TriedLength(0, 0, 0.0, 0.0, 0, 0.0)
    return JobFigures(
        **about,
        max_token_len=best.max_token_len,
        dropped=best.dropped + figures["samples_in"] - figures["samples_measured"],
        dropped_tokens_share=best.dropped_tokens_share,
        packs=best.packs,
        fill=best.fill,
        tokens=round(figures["tokens"] * (1 - best.dropped_tokens_share)),
    )


def objective_of(figures: Mapping[str, Any], objective: str, max_dropped_tokens: float) -> float:
    """Return the number that Hydra's optimising sweepers get for a job.

    nan: the job packed nothing, did a part of a stage or leaves all to Slurm, or dropped more than it may.

    Args:
        figures: of report.json, or of `stage=lengths`.
        objective: `fill`, `tokens`, or `cost`, the FLOPs of a token.
        max_dropped_tokens: the share of tokens (0 to 1) that the job may drop.
    """
    if not _is_whole(figures):
        return math.nan
    job = {"figures": figures, "number": 0, "page": None, "max_dropped_tokens": max_dropped_tokens}
    row = _row(job, {})
    values = {"fill": row.fill, "tokens": row.tokens, "cost": row.flops and row.flops / max(1, row.tokens)}
    value = values[objective] if row.may_be_best else None
    return math.nan if value is None else float(value)


def _with_times(sweep: Sweep) -> list[JobFigures]:
    """Return the rows with times relative to the best job's; without one, to the shortest of the jobs that may be it.

    If none may be the best, times are relative to the shortest of all.
    """
    rows, best = sweep.rows, sweep.best
    timed = [row for row in rows if row.flops and row.tokens]
    measures = [row for row in timed if row is best] or [row for row in timed if row.may_be_best] or timed
    flops = min((row.flops or 0.0 for row in measures), default=1.0)
    of_token = min((row.flops_per_token for row in measures), default=1.0)
    return [
        replace(row, time=row.flops / flops, time_of_token=row.flops_per_token / of_token)
        if row.flops and row.tokens
        else row
        for row in rows
    ]
