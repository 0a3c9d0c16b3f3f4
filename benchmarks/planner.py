"""Packing, beside the same lengths packed the usual ways: `make bench`, or `python benchmarks/planner.py [--large]`.

Machines are shared and noisy: figures are CPU seconds, user and system, best of three of ours and one of the others',
of things run in turn in this process; 10M items in a process of its own, for its peak memory. No real set of lengths
of that size could be had: sets are made up, their shapes are in `SETS`. Peers' packers are not here: `packers.py` has
the same algorithms as they write them.
"""

import argparse
import resource
import subprocess
import sys
from collections.abc import Callable

import numpy as np
from packers import best_fit, emptiest_bin, first_fit, trl
from rich.console import Console
from rich.table import Table
from timing import at_least, at_most, cpu_seconds, cpu_seconds_in_turn

from energon_pack.plan.bins import Bins, lower_bound, lower_bound_l2, pack_bins
from energon_pack.plan.settings import Algorithm
from energon_pack.run.seeded_random import Ints

Rows = list[tuple[str, ...]]
K = 1024
_BOTH = (Algorithm.auto, Algorithm.best_fit_decreasing)
_ALL = (Algorithm.auto, Algorithm.optimal, Algorithm.best_fit_decreasing)


# ----------------------------------------------------------------------------------------------------------- lengths


def mixture(num: int, chance: np.random.Generator) -> Ints:
    """Fine-tuning of a vision-language model: short texts, an image, documents, several images; up to 16,000 tokens."""
    kind = chance.choice(4, num, p=[0.35, 0.44, 0.15, 0.06])
    text, image = chance.lognormal(5.5, 1.0, num), chance.integers(200, 1400, num) + chance.lognormal(5, 0.8, num)
    document, several = chance.lognormal(7.5, 0.8, num), chance.lognormal(8.5, 0.6, num)
    lengths: Ints = np.clip(np.choose(kind, [text, image, document, several]), 12, 16e3)
    return lengths


def real_like(num: int, chance: np.random.Generator) -> Ints:
    """Photographs in the sizes of COCO, 28 pixels a token, with conversations in the shape of LLaVA's."""
    sizes = np.array([(640, 480), (640, 427), (480, 640), (640, 426), (427, 640), (500, 375), (640, 640), (333, 500)])
    tokens = np.prod(np.round(sizes / 28), axis=1)
    images = chance.choice(tokens, num, p=[0.35, 0.22, 0.15, 0.1, 0.08, 0.05, 0.03, 0.02])
    return np.maximum(images * (chance.random(num) < 0.7) + chance.lognormal(5.2, 0.7, num), 20)


def mid(num: int, chance: np.random.Generator) -> Ints:
    return chance.integers(700, 2601, num)


def tiles(num: int, chance: np.random.Generator) -> Ints:
    """InternVL: up to 12 tiles of 256 tokens and a thumbnail, with a short text."""
    share = 1 / np.arange(1, 14)
    number = chance.choice(np.arange(1, 14), num, p=share / share.sum())
    return np.minimum(256 * number + chance.lognormal(4.5, 0.7, num) + 8, 4000)


def internvl(num: int, chance: np.random.Generator) -> tuple[Ints, Ints]:
    """Tiles and lengths as of SynthDoG, ChartQA, AI2D and DocVQA in InternVL's mixture: 1, 3, 5, seldom up to 13.

    Shaped like the lengths that OmniBal publishes of them (arXiv 2407.20761): hardly one is under 300.
    """
    of = chance.choice(4, num, p=[0.42, 0.26, 0.175, 0.145])
    upto = np.array([(0.0, 0.6), (0.0, 0.06), (0.55, 0.75), (0.0, 0.35)])[of]
    number = 1 + 2 * (chance.random(num)[:, None] > upto).sum(axis=1)
    number = np.where(chance.random(num) < 0.03, chance.choice([7, 9, 11, 13], num), number)
    text = np.array([65, 50, 14, 210])[of] * np.exp(np.array([0.6, 0.8, 0.6, 0.5])[of] * chance.normal(size=num))
    return number, np.minimum(256 * number + 44 + text, 4000)


def video(num: int, chance: np.random.Generator) -> Ints:
    return chance.integers(4096, 16001, num)


#: name → lengths, capacities
SETS: dict[str, tuple[Callable[[int, np.random.Generator], Ints], tuple[int, ...]]] = {
    "mixture": (mixture, (4 * K, 8 * K, 32 * K, 128 * K)),
    "real-like": (real_like, (4 * K, 8 * K)),
    "700-2600": (mid, (4 * K, 8 * K)),
    "256-token tiles": (tiles, (4 * K, 8 * K)),
    "InternVL-like": (lambda num, chance: internvl(num, chance)[1], (4 * K, 8 * K)),
    "video 4-16k": (video, (16 * K, 32 * K, 64 * K)),
}


def lengths(name: str, num: int, capacity: int, multiple: int = 1) -> Ints:
    """At most `num`: those that fit. In blocks, so that making them takes less memory than packing them."""
    chance = np.random.default_rng(0)
    blocks = []
    for first in range(0, num, 10**6):
        block = -(-SETS[name][0](min(10**6, num - first), chance).astype(np.int32) // multiple) * multiple
        blocks.append(block[block <= capacity])
    return np.concatenate(blocks).astype(np.int64)


# ---------------------------------------------------------------------------------------------------------- measuring


def attention_cv(lens: Ints, bins: Bins) -> float:
    """How uneven Σ len² is between bins: standard deviation / mean."""
    cost = np.add.reduceat(lens[bins.items] ** 2, bins.starts[:-1])
    return float(cost.std() / cost.mean())


def composition(lens: Ints, bins: Bins) -> float:
    """Variance between bins of the mean log length, random grouping into bins of these sizes = 1."""
    logs, sizes = np.log(lens), np.diff(bins.starts)
    means = np.add.reduceat(logs[bins.items], bins.starts[:-1]) / sizes
    return float(((means - logs.mean()) ** 2).mean() / (logs.var() * (1 / sizes).mean()))


def all_sets(most: int) -> Table:
    table = Table("set", "items", "capacity", "packs", "fill", "/ L1", "/ L2", "best fit / L2", "CPU s", box=None)
    cells = [(name, num, capacity, 1) for name in SETS for num in (10**4, 10**5, 10**6) for capacity in SETS[name][1]]
    cells += [("mixture", 10**6, 8 * K, 8), ("mixture", 10**6, 8 * K, 64), ("mixture", most, 8 * K, 1)]
    for name, num, capacity, multiple in cells:
        lens = lengths(name, num, capacity, multiple)
        number = pack_bins(lens, capacity).num_bins
        l1, l2 = lower_bound(lens, capacity), lower_bound_l2(lens, capacity)
        greedy = pack_bins(lens, capacity, Algorithm.best_fit_decreasing).num_bins
        seconds = cpu_seconds(lambda lens=lens, capacity=capacity: pack_bins(lens, capacity), 1)  # type: ignore[misc]
        aligned = f" × {multiple}" if multiple > 1 else ""
        ratios = (
            f"{lens.sum() / number / capacity:.3%}",
            *(f"{x:.5f}" for x in (number / l1, number / l2, greedy / l2)),
        )
        table.add_row(name + aligned, f"{len(lens):,}", f"{capacity}", f"{number:,}", *ratios, f"{seconds:.2f}")
    return table


# -------------------------------------------------------------------------------------------------------------- goals


def speed(num: int = 10**6) -> Rows:
    """P1, and what the references come to."""
    rows: Rows = []
    for capacity in (8 * K, 32 * K, 128 * K):
        lens = lengths("mixture", num, capacity)
        bound = lower_bound_l2(lens, capacity)
        for algorithm in (Algorithm.best_fit_decreasing, Algorithm.auto):
            ours = cpu_seconds(lambda: pack_bins(lens, capacity, algorithm))  # noqa: B023
            found = pack_bins(lens, capacity, algorithm).num_bins / bound
            for reference, goal in ((best_fit, 100), (emptiest_bin, 20), (first_fit, 0)):
                packs: list[int] = []
                theirs = cpu_seconds(lambda: packs.append(reference(lens, capacity)), 1)  # noqa: B023
                what = f"{reference.__name__.replace('_', ' ')} {theirs:.2f} s, {packs[0] / bound:.5f} · L2"
                wanted = at_least(theirs / ours, goal, "×") if goal and algorithm is not Algorithm.auto else ""
                name = f"P1 {algorithm.value}, {num // 10**6}M @ {capacity // K}k"
                rows.append((name, f"{ours:.2f} s, {found:.5f} · L2", what, f"{theirs / ours:.0f}×", wanted))
    few = lengths("mixture", 20_000, 8 * K)
    try:
        work = trl(few, 8 * K)
    except (ImportError, RuntimeError):
        return [*rows, ("P1 auto, 20k @ 8k", "", "TRL is not installed", "", "")]
    theirs, ours = cpu_seconds(work, 1), cpu_seconds(lambda: pack_bins(few, 8 * K))
    bound = lower_bound_l2(few, 8 * K)
    what = f"TRL's pack_dataset {theirs:.2f} s, {work() / bound:.5f} · L2"
    found = pack_bins(few, 8 * K).num_bins / bound
    return [*rows, ("P1 auto, 20k @ 8k", f"{ours:.3f} s, {found:.5f} · L2", what, f"{theirs / ours:.0f}×", "")]


def quality(num: int = 10**6) -> Rows:
    """P2 to P5."""
    rows: Rows = []
    for capacity, most_cv in ((8 * K, 0.85), (32 * K, 0.5), (128 * K, 0.1)):
        lens = lengths("mixture", num, capacity)
        name = f"mixture {num // 10**6}M @ {capacity // K}k"
        bound = lower_bound(lens, capacity)
        auto, exact, greedy = (pack_bins(lens, capacity, algorithm) for algorithm in _ALL)
        for algorithm, bins in (("optimal", exact), ("auto", auto)):
            wanted = at_most((bins.num_bins - 1) / bound, 1.0001, " · L1 + 1")
            packs = f"{bins.num_bins:,} packs"
            rows.append((f"P2 {algorithm}, {name}", packs, f"L1 {bound:,}", f"{bins.num_bins / bound:.5f}", wanted))
        ours, theirs = attention_cv(lens, auto), attention_cv(lens, greedy)
        wanted = at_most(ours / theirs, most_cv)
        rows.append((f"P4 CV Σ len², {name}", f"{ours:.3f}", f"best fit {theirs:.3f}", f"{ours / theirs:.2f}", wanted))
        ours, theirs = composition(lens, auto), composition(lens, greedy)
        rows.append((f"P5 composition, {name}", f"{ours:.2f}", f"best fit {theirs:.1f}", "", at_most(ours, 1.5)))
    lens = lengths("real-like", num, 8 * K)
    ours, theirs = (composition(lens, pack_bins(lens, 8 * K, a)) for a in _BOTH)
    name = f"real-like {num // 10**6}M @ 8k"
    rows.append((f"P5 composition, {name}", f"{ours:.2f}", f"best fit {theirs:.1f}", "", at_most(ours, 2.5)))
    for name, capacity in (
        ("700-2600", 4 * K),
        ("700-2600", 8 * K),
        ("256-token tiles", 8 * K),
        ("video 4-16k", 32 * K),
    ):
        for number in (10**5, 10**6):
            lens = lengths(name, number, capacity)
            bound = lower_bound_l2(lens, capacity)
            both = (pack_bins(lens, capacity, a).num_bins / bound - 1 for a in _BOTH)
            ours, theirs = both
            what = f"P3 over L2, {name} {number // 1000}k @ {capacity // K}k"
            wanted = at_most(ours / theirs, 0.2)
            rows.append((what, f"{ours:.4%}", f"best fit {theirs:.3%}", f"{ours / theirs:.3f}", wanted))
    return rows


def image_cap() -> Rows:
    """P7: a third of the samples have an image of 200-1400 tokens, one in twenty several; others text."""
    rows: Rows = []
    for num, use in ((10**5, 0.98), (10**6, 0.98), (10**6, 0.9), (10**6, 1.1), (10**7, 0.98)):
        chance = np.random.default_rng(1)
        lens = lengths("mixture", num, 32 * K)
        images = np.where(
            (lens > 200) & (chance.random(len(lens)) < 0.8), 1 + (lens > 2500) * chance.integers(0, 6, len(lens)), 0
        )
        costs = np.stack([lens, images])
        tokens = lower_bound(lens, 32 * K)
        caps = np.array([32 * K, round(images.sum() / tokens / use)])
        bound = lower_bound(costs, caps)
        seconds = cpu_seconds(lambda: pack_bins(costs, caps), 1)  # noqa: B023
        packs = pack_bins(costs, caps).num_bins
        name = f"P7 {num // 1000:,}k @ 32k, at most {caps[1]} images, {images.sum() / tokens / caps[1]:.1%} used"
        row = (name, f"{packs:,} packs, {seconds:.2f} s", f"LB of both {bound:,}", f"{packs / bound:.5f}")
        rows.append((*row, at_most(packs / bound, 1.001)))
    return rows


def without_short(num: int = 70_706) -> Rows:
    """P8: CPU time a sample where no sample is short, beside the long-tailed mixture's in the same minute."""
    few, many = lengths("InternVL-like", num, 4 * K), lengths("mixture", 10**6, 8 * K)
    seconds = cpu_seconds_in_turn({"few": lambda: pack_bins(few, 4 * K), "many": lambda: pack_bins(many, 8 * K)}, 5)
    ours, theirs = seconds["few"] / len(few) * 1e6, seconds["many"] / len(many) * 1e6
    auto, exact, greedy = (pack_bins(few, 4 * K, algorithm).num_bins for algorithm in _ALL)
    name = f"P8 auto, {num:,} InternVL-like @ 4k"
    what = f"mixture 1M @ 8k {theirs:.2f} µs a sample"
    time = (name, f"{seconds['few']:.3f} s, {ours:.2f} µs a sample", what, f"{ours / theirs:.1f}×")
    packs = (name, f"{auto:,} packs", f"optimal {exact:,}, best fit {greedy:,}", f"{auto / exact:.5f}")
    return [(*time, at_most(ours / theirs, 3, "×")), (*packs, at_most(auto / exact, 1))]


def in_a_process(num: int, capacity: int) -> Rows:
    """P6."""
    command = [sys.executable, __file__, "--child", str(num), str(capacity)]
    seconds, peak, packs, bound = map(float, subprocess.check_output(command, text=True).split())
    name = f"P6 auto, {num // 10**6}M @ {capacity // K}k"
    ratio = f"{packs / bound:.5f} · L1"
    goals = (at_most(seconds, 4, " s"), at_most(peak, 1.2, " GB")) if num <= 10**7 else ("", "")
    return [
        (name, f"{seconds:.2f} s", ratio, "", goals[0]),
        (name, f"{peak:.2f} GB peak", "with the lengths", "", goals[1]),
    ]


def child(num: int, capacity: int) -> None:
    lens = lengths("mixture", num, capacity)
    packs = 0

    def work() -> None:
        nonlocal packs
        packs = pack_bins(lens, capacity).num_bins

    seconds = cpu_seconds(work, 1)
    print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / K**2, packs, lower_bound(lens, capacity))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true", help="100M items, too: about 10 GB of memory")
    parser.add_argument("--goals", action="store_true", help="without the table of all sets")
    parser.add_argument("--child", nargs=2, type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(*args.child)
        return
    console = Console(width=150)
    rows = in_a_process(10**7, 8 * K)  # first: a child's peak counts from what its parent had
    if args.large:
        rows += in_a_process(10**8, 8 * K)
    rows += [*quality(), *image_cap(), *without_short(), *speed()]
    table = Table("what", "ours", "beside", "ratio", "goal, holds", box=None, pad_edge=False)
    for row in sorted(rows, key=lambda row: row[0][:2]):
        table.add_row(*row)
    console.print(table)
    if not args.goals:
        console.print(all_sets(10**7))


if __name__ == "__main__":
    main()
