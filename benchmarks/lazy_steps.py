"""Steps of lazy packs over ranks: `python benchmarks/lazy_steps.py`.

For each set, under PackSampler and torch's DistributedSampler, the time that ranks wait for the slowest of a step,
relative to ranks that never wait (Σ max / Σ mean), in the language model and in the vision encoder; in the first and in
the second epoch; and what another epoch costs.
"""

import argparse
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from step_sets import SETS
from torch.utils.data import DistributedSampler

from energon_pack import PackSampler
from energon_pack.plan.existing_packs import exchange_members_for_epoch
from energon_pack.plan.packs import PackPlan, flops_of_packs
from energon_pack.plan.plan import plan_packs
from energon_pack.plan.settings import GroupBy, PackingConfig
from energon_pack.steps.cost import cost_model_or_default


class Planned:
    """What PackSampler asks of a dataset, without its bytes."""

    def __init__(self, name: str, share: float):
        make, num, width = SETS[name]
        self.items = make(int(num * share))
        self.packing = PackingConfig(max_token_len=width, group_by=GroupBy.none)
        self.plan = plan_packs(self.items, self.packing, 0)
        self.micro_batches, self.fingerprint, self.config = 1, name, SimpleNamespace(seed=0, packing=self.packing)

    def __len__(self) -> int:
        return self.plan.num_packs

    def have_epoch(self, epoch: int) -> None:
        pass

    def plan_of(self, epoch: int) -> PackPlan:
        return exchange_members_for_epoch(self.plan, self.items, self.packing, 0, epoch)

    def costs(self, epoch: int) -> tuple[Any, Any]:
        plan = self.plan_of(epoch)
        return flops_of_packs(self.items, plan, cost_model_or_default(None)), plan.sum_per_pack(
            self.items.num_supervised
        )


def waits(costs: Any, order: list[int], ranks: int) -> str:
    """Of the language model and of the vision encoder."""
    whole = np.array(order)[: len(order) // ranks * ranks].reshape(-1, ranks)
    found = [cost[whole] for cost in costs if cost.any()]
    return " ".join(f"{cost.max(axis=1).sum() / cost.mean(axis=1).sum():.3f}" for cost in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=1.0, help="of the samples of each set")
    arguments = parser.parse_args()
    table = Table("", "packs", "ranks", "PackSampler, epoch 0", "epoch 1", "DistributedSampler", "epoch 1, s", box=None)
    for name in SETS:
        packs: Any = Planned(name, arguments.share)
        start = time.process_time()
        costs = [packs.costs(0)[0], packs.costs(1)[0]]
        seconds = time.process_time() - start
        for ranks in (8, 64):
            samplers = [PackSampler(packs, rank, ranks) for rank in range(ranks)]
            ours = []
            for epoch in range(2):
                steps = zip(*samplers, strict=True)
                order = [number for step in steps if len({at for at, _ in step}) == 1 for _, number in step]
                ours.append(waits(costs[epoch], order, ranks))
            by_chance = [DistributedSampler[Any](packs, ranks, rank, drop_last=True) for rank in range(ranks)]
            theirs = waits(costs[0], [number for step in zip(*by_chance, strict=True) for number in step], ranks)
            table.add_row(name, f"{len(packs):,}", str(ranks), *ours, theirs, f"{seconds:.2f}")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
