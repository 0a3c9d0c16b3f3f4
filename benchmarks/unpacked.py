"""Padding without packing, by how batches are made: `python benchmarks/unpacked.py`.

Each row is 100,000 lengths of `planner.SETS`, shared by 8 ranks; columns are the share of places in batches that are
padding: batches by chance, `LengthGroupedSampler` (its own `window`, 128), and packs. `8` and `32` are samples of a
batch; tokens are the most that a batch may be, padding counted, and what a pack holds. In brackets: how much longer the
longest batch of a step is than the mean of its ranks, which wait for it.
"""

from functools import partial

import numpy as np
from planner import SETS, K, lengths
from rich.console import Console
from rich.table import Table
from timing import cpu_seconds

from energon_pack.plan.bins import pack_bins
from energon_pack.run.seeded_random import Ints, epoch_seed
from energon_pack.trainers.samplers import LengthGroups, group_by_length

NUM, RANKS = 100_000, 8


def waiting(lens: Ints, groups: LengthGroups) -> float:
    """The padded tokens of the largest batch of a step over the mean of its ranks, less one; the mean of all steps."""
    starts, items = groups.batches
    widths = np.maximum.reduceat(lens[items], starts[:-1]) * np.diff(starts)
    of_steps = widths[groups.order].reshape(-1, RANKS)
    return float((of_steps.max(axis=1) / of_steps.mean(axis=1)).mean() - 1)


def padding(lens: Ints, groups: LengthGroups) -> float:
    """The share of padding in batches that are as wide as their longest sample."""
    starts, items = groups.batches
    return 1 - float(lens.sum()) / float((np.diff(starts) * np.maximum.reduceat(lens[items], starts[:-1])).sum())


Limits = tuple[int | None, int | None]


def grouped(lens: Ints, limits: Limits, window: int, epoch: int = 0) -> LengthGroups:
    size, tokens = limits
    return group_by_length(
        lens, RANKS, *limits, window * (size or (tokens or 1) / float(lens.mean())), epoch_seed(0, epoch)
    )


def cell(lens: Ints, limits: Limits, window: int) -> str:
    groups = grouped(lens, limits, window)
    assert len(np.unique(groups.batches.items)) == len(lens)
    return f"{padding(lens, groups):.1%} ({waiting(lens, groups):.0%})"


def main() -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("lengths", no_wrap=True)
    table.add_column("tokens", justify="right")
    for limit in ("8", "32", "tokens"):
        for how in ("chance", "grouped"):
            table.add_column(f"{limit}: {how}", justify="right", no_wrap=True)
    table.add_column("packs", justify="right")
    table.add_column("an epoch's batches", justify="right")
    for name, (_, capacities) in SETS.items():
        tokens = max(16 * K, min(capacities))
        lens = np.asarray(lengths(name, NUM, tokens), np.int64)
        cells = []
        for limits in ((8, None), (32, None), (None, tokens)):
            cells += [cell(lens, limits, 1), cell(lens, limits, 128)]  # a window of one batch: whoever comes
        packs = 1 - lens.sum() / (pack_bins(lens, tokens).num_bins * tokens)
        seconds = cpu_seconds(partial(grouped, lens, (None, tokens), 128, 1), 1)
        table.add_row(name, f"{tokens:,}", *cells, f"{packs:.1%}", f"{seconds:.2f} s")
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
