"""Steps of many ranks, as Energon's own loader reads them: `python benchmarks/even_steps.py`.

For each set packs are planned with and without `packing.topology`. A dataset of as many (small) packs is written, and
the loader of every rank reads it, with its worker processes, or in a pool of processes where there are hundreds of
ranks; each pack's number is noted. The costs are those of the packs of the plan. With `--arithmetic` no dataset is
written, and the order is the one that `steps.topology.reading_order` says (seconds, not minutes):
`python benchmarks/even_steps.py --arithmetic --sets "conversations @2k"`.
"""

import argparse
import io
import json
import tarfile
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from megatron.energon import DefaultTaskEncoder, WorkerConfig, get_loader, get_train_dataset
from megatron.energon.epathlib import EPath
from megatron.energon.flavors import BaseWebdatasetFactory
from rich.console import Console
from rich.table import Table
from step_sets import SETS
from timing import cpu_seconds

from energon_pack.plan.packs import PackPlan, flops_of_packs
from energon_pack.plan.plan import plan_packs
from energon_pack.plan.settings import PackingConfig
from energon_pack.run.seeded_random import Ints
from energon_pack.steps.cost import cost_model_or_default
from energon_pack.steps.evenness import evenness_figures
from energon_pack.steps.topology import Topology, reading_order

SHARD_PACKS = 2_000
TOPOLOGIES = (Topology(8, 4), Topology(8, 4, 32), Topology(64), Topology(64, 1, 8), Topology(512), Topology(512, 1, 8))


def write(folder: Path, num: int) -> None:
    """A dataset of `num` samples that say nothing but their number."""
    folder.mkdir()
    names = []
    for first in range(0, num, SHARD_PACKS):
        names.append(f"{first:08d}.tar")
        with tarfile.open(folder / names[-1], "w") as tar:
            for number in range(first, min(num, first + SHARD_PACKS)):
                info = tarfile.TarInfo(f"{number:08d}.txt")
                info.size = 1
                tar.addfile(info, io.BytesIO(b"."))
    BaseWebdatasetFactory.prepare_dataset(
        EPath(folder), names, split_parts_ratio=[("train", 1.0)], shuffle_seed=None, workers=1
    )
    sample_type = {"__module__": "megatron.energon", "__class__": "TextSample"}
    (folder / ".nv-meta" / "dataset.yaml").write_text(
        yaml.safe_dump({"sample_type": sample_type, "field_map": {"text": "txt"}})
    )


def packs_of_rank(folder: Path, rank: int, topology: Topology, num: int) -> list[int]:
    """The packs that a rank reads first, by Energon's loader."""
    num_workers = topology.workers if topology.workers > 1 else 0
    worker = WorkerConfig(rank=rank, world_size=topology.data_parallel, num_workers=num_workers)
    packs = get_train_dataset(
        folder,
        worker_config=worker,
        batch_size=1,
        task_encoder=DefaultTaskEncoder(),
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        shuffle_over_epochs_multiplier=None,
        parallel_shard_iters=1,
    )
    return [int(key) for batch in islice(get_loader(packs), num) for key in batch.__key__]


def read(folder: Path, num: int, ranks: int, workers: int) -> Ints:
    """Packs in the order in which the loaders of all ranks together hand them out: whole rows of the first epoch."""
    jobs = [(folder, rank, Topology(ranks, workers), num // (ranks * workers) * workers) for rank in range(ranks)]
    if workers > 1:
        by_rank = [packs_of_rank(*job) for job in jobs]
    else:
        with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
            by_rank = list(pool.map(packs_of_rank, *zip(*jobs, strict=True), chunksize=8))
    return np.array(by_rank).T.ravel()


def costs_of(plan: PackPlan, items: Any) -> tuple[Any, Any]:
    """Return the costs of packs, and their trained tokens."""
    return flops_of_packs(items, plan, cost_model_or_default(None)), plan.sum_per_pack(items.num_supervised)


def row(figures: dict[str, Any]) -> list[str]:
    cells = [f"{figures['steps']}"]
    for name in ("lm", "vision", "both"):
        cells += [f"{figures[name]['epoch']:.4f}", f"{figures[name]['bound']:.4f}"]
    return [*cells, f"{figures['trained']['worst']:.1%}", f"{figures['trained']['beyond']:.0%}"]


def read_all(worlds: list[tuple[int, int]], num: int) -> dict[tuple[int, int], Ints]:
    """What the loaders of each world hand out."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "packs"
        write(data, num)
        return {world: read(data, num, *world) for world in worlds}


def compare(console: Console, name: str, by_arithmetic: bool) -> dict[str, Any]:
    """One set under all topologies that have a whole step of it."""
    make, num, capacity = SETS[name]
    items, found = make(num), {}
    packing = PackingConfig(max_token_len=capacity)
    without = plan_packs(items, packing)
    table = Table("ranks×workers, packs a step", "steps", "LM", "bound", "vision", "bound", "both", "bound", box=None)
    for column in ("trained: worst", "beyond 2 %", "plan CPU s"):
        table.add_column(column)
    topologies = [topology for topology in TOPOLOGIES if topology.unit_size <= without.num_packs]
    worlds = sorted({(topology.data_parallel, topology.workers) for topology in topologies})
    if by_arithmetic:
        together = {world: reading_order(without.num_packs, Topology(*world)) for world in worlds}
    else:
        together = read_all(worlds, without.num_packs)
    for topology in topologies:
        ours = replace(packing, topology=topology)
        plan = plan_packs(items, ours)
        label = f"{topology.data_parallel}×{topology.workers}, {topology.micro_batches}"
        as_read = together[topology.data_parallel, topology.workers]
        for kind, planned, settings in (("as without", without, packing), ("laid out", plan, ours)):
            assert planned.num_packs == without.num_packs
            world = topology.data_parallel, topology.micro_batches
            found[f"{label} {kind}"] = evenness_figures(*costs_of(planned, items), *world, as_read)
            seconds = cpu_seconds(partial(plan_packs, items, settings), 1)
            table.add_row(f"{label} {kind}", *row(found[f"{label} {kind}"]), f"{seconds:.2f}")
    console.print(f"[bold]{name}[/]: {len(items):,} samples, {without.num_packs:,} packs")
    console.print(table)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="*", default=list(SETS), choices=list(SETS))
    parser.add_argument("--json", type=Path, help="the figures, in a file")
    parser.add_argument("--arithmetic", action="store_true", help="without Energon's loaders")
    args = parser.parse_args()
    console = Console(width=150)
    found = {name: compare(console, name, args.arithmetic) for name in args.sets}
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
