"""Even steps by planning, beside OmniBal's published idea on the same lengths: `python benchmarks/omnibal.py`.

70,706 made-up samples as of InternVL's mixture: 1 to 13 tiles of 256 tokens, with text, into 4096 tokens. Of each way
to pack: packs, fill, CPU seconds and, at 8 and 64 ranks, by how much the slowest rank of a step has more than the mean,
as a share of what it has: of visual tokens, of tokens, of Σ len².

Source of the idea, written anew here: Yao et al., "OmniBal: Towards Fast Instruct-tuning for Vision-Language Models via
Omniverse Computation Balance", arXiv 2407.20761, iterative sampling and filtering.
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from planner import internvl
from rich.console import Console
from rich.table import Table
from timing import cpu_seconds

from energon_pack.plan.items import Items
from energon_pack.plan.plan import plan_packs
from energon_pack.plan.settings import PackingConfig
from energon_pack.run.seeded_random import Ints
from energon_pack.steps.topology import Topology, reading_order

NUM, CAPACITY, NUM_TILES, RANKS = 70_706, 4096, 14, (8, 64)
ROUNDS, CLOSE = 20, 0.9


class Packs(NamedTuple):
    """In the order in which ranks read them: that many in a row are read together."""

    starts: Ints  # num_packs + 1
    samples: Ints

    def sums(self, values: Ints) -> Ints:
        sums: Ints = np.add.reduceat(values[self.samples], self.starts[:-1])
        return sums

    def ordered(self, order: Ints) -> "Packs":
        groups = np.split(self.samples, self.starts[1:-1])
        return packs_of([groups[number] for number in order])


def packs_of(groups: Sequence[Ints | list[int]]) -> Packs:
    sizes = [len(group) for group in groups]
    return Packs(np.concatenate(([0], np.cumsum(sizes))), np.concatenate(groups).astype(np.int64))


def by_sampling(tiles: Ints, lens: Ints, chance: np.random.Generator) -> Packs:
    """Fill groups in random order up to both thresholds; keep those near to them, group the others' samples again."""
    kept: list[list[int]] = []
    left = np.arange(len(lens))
    for turn in range(ROUNDS):
        groups: list[list[int]] = [[]]
        sums = [(0, 0)]
        for sample in chance.permutation(left).tolist():
            tile_sum, len_sum = sums[-1][0] + int(tiles[sample]), sums[-1][1] + int(lens[sample])
            if tile_sum > NUM_TILES or len_sum > CAPACITY:
                groups.append([])
                sums.append((0, 0))
                tile_sum, len_sum = int(tiles[sample]), int(lens[sample])
            groups[-1].append(sample)
            sums[-1] = tile_sum, len_sum
        is_last = turn == ROUNDS - 1
        is_good = [is_last or (a >= CLOSE * NUM_TILES and b >= CLOSE * CAPACITY) for a, b in sums]
        kept += [group for group, good in zip(groups, is_good, strict=True) if good]
        again = [sample for group, good in zip(groups, is_good, strict=True) if not good for sample in group]
        if not again:
            break
        left = np.array(again)
    return packs_of(kept)


def planned(tiles: Ints, lens: Ints, ranks: int) -> Packs:
    """Packs as ranks read them that are laid out for so many; for one: as they lie on disk."""
    zeros = np.zeros(len(lens), np.int64)
    counts = {"token_len": lens, "num_images": np.ones_like(lens), "num_visual_tokens": 256 * tiles}
    topology = Topology(ranks)
    items = Items(counts, zeros + 1, zeros, zeros, zeros, lens - 256 * tiles)
    plan = plan_packs(items, PackingConfig(max_token_len=CAPACITY, topology=topology))
    packs = Packs(plan.starts, plan.items)
    return packs.ordered(reading_order(plan.num_packs, topology)) if ranks > 1 else packs


def dist_ratio(cost: Ints, ranks: int) -> float:
    """Mean over the steps of (max - mean) / max over the ranks, as OmniBal measures it."""
    steps = cost[: len(cost) // ranks * ranks].reshape(-1, ranks)
    most = steps.max(axis=1)
    return float(((most - steps.mean(axis=1)) / most).mean())


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    chance = np.random.default_rng(0)
    tiles, real_lens = internvl(NUM, chance)
    lens = real_lens.astype(np.int64)
    costs = (256 * tiles, lens, lens**2)

    def shuffled(packs: Packs) -> Packs:
        return packs.ordered(chance.permutation(len(packs.starts) - 1))

    def timed(make: Callable[[], Packs]) -> tuple[Packs, float]:
        made: list[Packs] = []
        seconds = cpu_seconds(lambda: made.append(make()), 1)
        return made[0], seconds

    theirs, their_seconds = timed(lambda: by_sampling(tiles, lens, chance))
    ours, our_seconds = timed(lambda: planned(tiles, lens, 1))
    laid_out, seconds = zip(*(timed(partial(planned, tiles, lens, r)) for r in RANKS), strict=True)
    rows = [
        ("sampling and filtering, random order", [shuffled(theirs) for _ in RANKS], their_seconds),
        ("energon_pack, random order", [shuffled(ours) for _ in RANKS], our_seconds),
        ("energon_pack, laid out for the ranks", laid_out, max(seconds)),
    ]
    bound = -(-int(lens.sum()) // CAPACITY)
    title = f"{NUM:,} samples, {tiles.sum():,} tiles, at least {bound:,} packs; Dist ratio of ViT / LLM / Σ len²"
    table = Table("", "packs", "fill", "CPU s", *(f"DP {ranks}" for ranks in RANKS), box=None, title=title)
    for name, of_ranks, used in rows:
        num = len(of_ranks[0].starts) - 1
        ratios = [[dist_ratio(packs.sums(cost), r) for cost in costs] for packs, r in zip(of_ranks, RANKS, strict=True)]
        cells = [" / ".join(f"{ratio:.4f}" for ratio in row) for row in ratios]
        table.add_row(name, f"{num:,}", f"{lens.sum() / num / CAPACITY:.2%}", f"{used:.2f}", *cells)
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
