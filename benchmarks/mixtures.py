"""Shares and even steps of a mixture of five real sets, as Energon's loaders read it: `python benchmarks/mixtures.py`.

The sets of shared/real with weights 40, 30, 15, 10 and 5 are packed in one plan, and each of its own and then put in
one order (`energon_pack.order`). The loaders of all ranks read every pack; costs and trained tokens are those of the
plan. Weights are shares of trained tokens, packs have 2,048 tokens and refer to their media.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from billion import MILLION, fill_cache, shards_of
from megatron.energon import DefaultTaskEncoder, WorkerConfig, get_loader, get_train_dataset
from rich.console import Console
from rich.table import Table

from energon_pack.dataset.files import PlanFile
from energon_pack.dataset.folder import DatasetFolder
from energon_pack.dataset.manifest import read_manifest
from energon_pack.loading import train_arguments
from energon_pack.loading.in_order import PacksInOrder
from energon_pack.order import DatasetOfOrder, read_train_members
from energon_pack.order import main as order
from energon_pack.plan.epoch_draws import apply_epochs_and_mixture, mixture_figures
from energon_pack.plan.items import Lengths
from energon_pack.plan.packs import flops_of_packs, plan_packs_of_sizes
from energon_pack.plan.plan import plan_packs
from energon_pack.plan.settings import PackingConfig
from energon_pack.run.bounded_memory import Scratch
from energon_pack.run.seeded_random import Ints
from energon_pack.sources.mixture import Entry, Mixture
from energon_pack.steps.cost import CostModel, cost_model_or_default
from energon_pack.steps.evenness import evenness_figures
from energon_pack.steps.topology import Topology

REAL = Path(__file__).resolve().parents[2] / "shared" / "real"
SETS = {
    "alpaca": ("jsonl/text_alpaca.jsonl", 40),
    "sharegpt_zh": ("wds/text_sharegpt_zh", 30),
    "toolcall": ("jsonl/text_toolcall.jsonl", 15),
    "mathv": ("jsonl/image_mathv.jsonl", 10),
    "image_demo": ("jsonl/image_demo.jsonl", 5),
}
TOPOLOGIES = (Topology(8, 4, 8), Topology(64, 1, 8), Topology(8, 4), Topology(64))


class Raw(PacksInOrder, DefaultTaskEncoder[Any, Any, Any, Any]):
    """Packs as they are."""

    decoder = None


def packed(folder: Path, name: str, source: Path, epochs: int, group_by: str, topology: Topology) -> Path:
    settings = [f"packing.topology.{key}={value}" for key, value in vars(topology).items()]
    command = [
        *("+model=qwen2_5_vl", f"model.processor={REAL}/processors/qwen2_5_vl", f"source.path={source}"),
        *(f"output.dir={folder}", f"output.name={name}", f"cache_dir={folder}/cache", "output.media=reference"),
        *("packing.max_token_len=2048", "packing.overlong=drop", f"packing.group_by={group_by}", "measure.verify=0"),
        *(f"packing.epochs={epochs}", "max_skipped=0.5", "executor.num_workers=1", *settings),
    ]
    subprocess.run([sys.executable, "-m", "energon_pack", *command], check=True, stdout=subprocess.DEVNULL)
    return folder / name


def keys_of_rank(folder: Path, rank: int, topology: Topology, num: int) -> list[tuple[str, str]]:
    """The first packs of a rank, as (folder of the tar, key)."""
    workers = topology.workers if topology.workers > 1 else 0
    worker = WorkerConfig(rank=rank, world_size=topology.data_parallel, num_workers=workers)
    packs = get_train_dataset(folder, **{**train_arguments(folder, Raw(), worker), "batch_size": None})
    return [
        (str(pack.__sources__[0].shard_name).rpartition("/")[0], pack.__key__)
        for pack in islice(get_loader(packs), num)
    ]


def read(folder: Path, topology: Topology, num: int) -> list[tuple[str, str]]:
    """All packs of whole rows, in the order in which the ranks together read them."""
    ranks = range(topology.data_parallel)
    jobs = [(folder, rank, topology, num // topology.row_size * topology.workers) for rank in ranks]
    if topology.workers > 1:
        by_rank = [keys_of_rank(*job) for job in jobs]
    else:
        with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
            by_rank = list(pool.map(keys_of_rank, *zip(*jobs, strict=True), chunksize=8))
    return [key for row in zip(*by_rank, strict=True) for key in row]


class Packs:
    """What the packs of datasets hold, by (folder of the tar, key)."""

    def __init__(self, parts: dict[str, Path], by_entry: bool):
        manifests = [read_manifest(path) for path in parts.values()]
        pairs = zip(parts.items(), manifests, strict=True)
        found = [DatasetOfOrder(name, DatasetFolder(path), str(path), manifest) for (name, path), manifest in pairs]
        items, sizes, of_pack = read_train_members(found)
        packs = plan_packs_of_sizes(sizes)
        costs = flops_of_packs(items, packs, CostModel.from_json(manifests[0]["cost"]))
        self.costs = costs, packs.sum_per_pack(items.num_supervised)
        rows = [row for part in found for row in self._rows(part, not by_entry)]
        keys = list(dict.fromkeys((folder, key) for folder, key, _ in rows))
        self.number = {key: number for number, key in enumerate(keys)}
        entries = {name: number for number, name in enumerate(SETS)}
        of_member = np.array([entries[shard.partition("/")[0]] for _, _, shard in rows]) if by_entry else None
        self.trained = np.zeros((len(sizes), len(SETS)))
        pack = np.repeat(np.arange(len(sizes)), sizes)
        np.add.at(self.trained, (pack, of_pack[pack] if of_member is None else of_member), items.num_supervised)

    @staticmethod
    def _rows(part: DatasetOfOrder, is_part: bool) -> Iterator[tuple[str, str, str]]:
        for packs, shards in PlanFile(part.folder).columns("pack", "shard"):
            for pack, shard in zip(packs, shards, strict=True):
                yield part.path if is_part else "", pack, shard

    def row(self, keys: list[tuple[str, str]], topology: Topology) -> list[str]:
        order: Ints = np.array([self.number[key] for key in keys])
        found = evenness_figures(*self.costs, topology.data_parallel, topology.micro_batches, order)
        waits = [f"{found[name]['epoch']:.4f}" for name in ("lm", "vision", "both")]
        size = max(64, topology.data_parallel * topology.micro_batches)
        steps, hundredth = self._off(order, size), self._off(order, len(order) // 100)
        return [
            f"{len(order):,}",
            *waits,
            f"{np.sqrt((steps**2).mean()):.2%} · {steps.max():.2%} of {size}",
            f"{np.sqrt((hundredth**2).mean()):.2%} · {hundredth.max():.2%}",
        ]

    def _off(self, order: Ints, size: int) -> np.ndarray:
        """How far the share of each entry is from its weight, in stretches of so many packs."""
        trained = self.trained[order]
        stretches = trained[: len(order) // size * size].reshape(-1, size, len(SETS)).sum(axis=1)
        weights = np.array([weight for _, weight in SETS.values()]) / 100
        off: np.ndarray = np.abs(stretches / stretches.sum(axis=1, keepdims=True) - weights)
        return off


def plan_again(num: int) -> None:
    """Plan a mixture of so many samples whose lengths are in the cache: what other weights take."""
    cost, packing = cost_model_or_default(None), PackingConfig()
    with tempfile.TemporaryDirectory() as folder:
        fill_cache(Path(folder) / "cache", min(num, MILLION))
        measured = shards_of(Path(folder) / "cache", num, min(num, MILLION))
        entries = tuple(Entry(name, name, float(weight), None, None, {}) for name, (_, weight) in SETS.items())
        mixture = Mixture(entries, {item.shard.name: n % len(entries) for n, item in enumerate(measured)})
        start = time.process_time()
        lengths = Lengths(measured, scratch=Scratch(Path(folder)))
        read = time.process_time()
        lengths, entry_shares = apply_epochs_and_mixture(lengths, mixture, packing, 0)
        drawn = time.process_time()
        plan = plan_packs(lengths.items, packing, 0, cost, lengths.scratch)
        planned = time.process_time()
        shares = ", ".join(
            f"{item['share']:.4f}" for item in mixture_figures(entry_shares, lengths, plan, packing.max_token_len)
        )
    times = f"lengths {read - start:.1f}, draws {drawn - read:.1f}, packs {planned - drawn:.1f}"
    print(
        f"{num:,} samples, {plan.num_packs:,} packs, shares {shares}; CPU seconds: {times}, all {planned - start:.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=16, help="of the whole mixture: about 1,000 packs each (16)")
    parser.add_argument("--topologies", type=int, help="only the first so many")
    parser.add_argument("--samples", type=int, help="only plan so many samples, whose lengths are in the cache")
    args = parser.parse_args()
    if args.samples:
        plan_again(args.samples)
        return
    console = Console(width=150)
    table = Table("", "ranks×workers, packs a step", "packs", "LM", "vision", "both", box=None)
    table.add_column("shares off, of steps: rms · worst")
    table.add_column("of hundredths")
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        mix = folder / "mix.yaml"
        listed = [{"name": name, "path": str(REAL / path), "weight": w} for name, (path, w) in SETS.items()]
        mix.write_text(json.dumps({"mixture": listed}))
        for group_by in ("none", "media"):
            for topology in TOPOLOGIES[: args.topologies]:
                name = f"{group_by}-{topology.row_size}-{topology.micro_batches}"
                label = f"{topology.data_parallel}×{topology.workers}, {topology.micro_batches}"
                path = packed(folder, name, mix, args.epochs, group_by, topology)
                keys = read(path, topology, read_manifest(path)["num_packs"])
                table.add_row(f"one plan, group_by={group_by}", label, *Packs({"": path}, True).row(keys, topology))
        alone = {n: packed(folder, n, REAL / path, 1, "media", Topology()) for n, (path, _) in SETS.items()}
        given = [f"{path}={SETS[name][1]}" for name, path in alone.items()]
        packs = Packs(alone, False)
        for topology in TOPOLOGIES[: args.topologies]:
            out = folder / f"order-{topology.row_size}-{topology.micro_batches}"
            who = ("--ranks", topology.data_parallel, "--workers", topology.workers)
            steps = ("--micro-batches", topology.micro_batches, "--epochs", args.epochs)
            order([str(out), *given, *map(str, (*who, *steps))])
            keys = read(out, topology, read_manifest(out)["num_packs"])
            label = f"{topology.data_parallel}×{topology.workers}, {topology.micro_batches}"
            table.add_row("order over five datasets", label, *packs.row(keys, topology))
    console.print(table)


if __name__ == "__main__":
    main()
