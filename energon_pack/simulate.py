"""Simulate how long ranks wait for each other, for any number of ranks: `python -m energon_pack.simulate DIR`.

Replays the order in which a loader reads packs, and adds up their costs for each rank in each step.
No media byte is read: the plan says what is in each pack, and the model's sizes give its cost.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.table import Table

from energon_pack.dataset.files import PlanFile, at
from energon_pack.dataset.folder import DatasetFolder
from energon_pack.dataset.manifest import MANIFEST, read_manifest
from energon_pack.dataset.order_parts import opened
from energon_pack.dataset.plan_counts import items_of, sizes_of, tables_with_counts
from energon_pack.errors import PackError, amount
from energon_pack.plan.made import packs_of
from energon_pack.plan.packs import costs_of_packs
from energon_pack.plan.splits import SPLITS
from energon_pack.run.command import count, parser, run
from energon_pack.run.console import console, say
from energon_pack.run.files import META_FOLDER
from energon_pack.run.seeded import Ints
from energon_pack.sources.storage import is_file
from energon_pack.steps.cost import CostModel, cost_model
from energon_pack.steps.spread import PackCosts, compared
from energon_pack.steps.topology import Topology, stream, topology_of

#: the name of each order, and the loader that reads in it
LOADERS = {
    "plan": "PackedTaskEncoder: the order of the plan, whatever the number of ranks and workers",
    "energon": "Energon's own way without shuffling: a stretch for each worker",
}


@dataclass(frozen=True)
class Simulated:
    """The results for one number of ranks."""

    data_parallel: int
    workers: int
    micro_batches: int
    in_order: dict[str, Any]  # as `figures` returns it
    by_chance: dict[str, Any]


@dataclass(frozen=True)
class Simulation:
    """The facts about a split of a dataset, and the results for each world of ranks."""

    split: str
    packs: int
    #: the ranks that the packs were laid out for
    topology: Topology
    cost: CostModel
    #: share of padding in rows that are padded to `max_token_len`
    padding: float
    loader: str
    worlds: list[Simulated]


def simulate(
    dataset: str | Path,
    worlds: Sequence[Topology],
    loader: str = "plan",
    split: str = "train",
    model: Path | None = None,
) -> Simulation:
    """Replay a loader over the packs of a split.

    Args:
        dataset: a folder, or an address.
        worlds: the ranks that train; `workers` matter only with Energon's own loader.
        loader: a key of `LOADERS`.
        model: folder with a config.json, from which samples' costs follow; None: as the dataset says.

    Raises:
        PackError: not a packed dataset, a Metadataset, a split without packs, or no config.json.
    """
    folder = DatasetFolder(dataset)
    manifest = _manifest_of(folder)
    if model and not (model / "config.json").is_file():
        raise PackError(f"--model {model}: there is no config.json in it")
    cost = CostModel.from_json(manifest["cost"]) if "cost" in manifest and not model else cost_model(model)
    costs, tokens = _costs_of_packs(PlanFile(folder), cost)
    first, num = _packs_of(manifest, split, len(costs))
    costs, tokens = costs.take(np.arange(first, first + num)), tokens[first : first + num]
    planned = topology_of(manifest)
    found = []
    for world in worlds:
        is_planned = loader == "plan" and planned != Topology()  # else each rank, or worker, reads a stretch
        workers = 1 if loader == "plan" else world.workers
        order = stream(num, planned if is_planned else Topology(world.data_parallel, workers))
        found.append(Simulated(**asdict(world), **compared(costs, order, world.data_parallel, world.micro_batches)))
    places = np.maximum(tokens, int(manifest["max_token_len"])).sum()
    padding = round(1 - float(tokens.sum() / places), 4)
    return Simulation(split, num, planned, cost, padding, loader, found)


def _manifest_of(folder: DatasetFolder) -> dict[str, Any]:
    if not folder.has(f"{META_FOLDER}/{MANIFEST}"):
        if is_file(folder.path):
            what = "Energon draws from a Metadataset's datasets by chance; simulate each by its folder"
            raise PackError(f"{folder}: {what}")
        raise PackError(f"{folder} is no dataset that energon_pack packed: there is no {META_FOLDER}/{MANIFEST}")
    return read_manifest(opened(folder.path).path)


def _packs_of(manifest: dict[str, Any], split: str, num_packs: int) -> tuple[int, int]:
    """Return the first pack of a split, and how many it has: splits are written one after the other."""
    splits = manifest.get("splits") or {"train": {"packs": num_packs}}
    if split not in splits:
        raise PackError(f"--split {split}: no pack is in it; there are: {', '.join(splits)}")
    before = SPLITS[: SPLITS.index(split)]
    return sum(at(splits, name, "packs") or 0 for name in before), int(splits[split]["packs"])


def _costs_of_packs(plan: PlanFile, cost: CostModel) -> tuple[PackCosts, Ints]:
    """Return the cost of each pack, in the order of writing, and its tokens."""
    plan.check()
    columns: list[list[npt.NDArray[Any]]] = [[np.zeros(0)] for _ in range(4)]
    for table in tables_with_counts(plan):
        items, packs = items_of(table), packs_of(sizes_of(table))
        sums = packs.per_pack(items.num_supervised), packs.per_pack(items.lens)
        for column, values in zip(columns, (*costs_of_packs(items, packs, cost), *sums), strict=True):
            column.append(values)
    lm, vision, trained, tokens = map(np.concatenate, columns)
    return PackCosts(lm, vision, trained.astype(np.int64)), tokens.astype(np.int64)


# ----------------------------------------------------------------------------------------------- what a user sees


def print_simulation(simulation: Simulation) -> None:
    """Print a row for each world and order; costs are the time of an epoch relative to ranks that never wait."""
    laid = simulation.topology
    ranks, workers = amount(laid.data_parallel, "rank"), amount(laid.workers, "worker")
    who = f"{ranks} × {workers}, {amount(laid.micro_batches, 'pack')} each in a step"
    said = f"laid out for {who}" if laid != Topology() else "laid out for nobody (packing.topology)"
    say(f"{amount(simulation.packs, 'pack')} of {simulation.split}, {said}")
    say(f"{simulation.loader}: {LOADERS[simulation.loader]}")
    say(f"costs: {simulation.cost.unit}; {simulation.cost.source}")
    say(f"padding: {simulation.padding:.2%} of rows that are padded to max_token_len")
    table = Table(box=None, pad_edge=False, header_style="bold")
    names = ["ranks", "workers", "packs", "order", "steps", "LM", "vision", "both", "at least", "worst", "waiting"]
    for name in [*names, "trained ±2 %"]:
        table.add_column(name, justify="left" if name == "order" else "right")
    for world in simulation.worlds:
        for name, figures in ((simulation.loader, world.in_order), ("by chance", world.by_chance)):
            size = (world.data_parallel, world.workers, world.micro_batches) if figures is world.in_order else ("",) * 3
            table.add_row(*map(str, size), name, *_cells(figures))
    console().print(table)
    say("LM, vision, both: time of an epoch, 1 where no rank waits; at least: of both, in any order; worst: step")


def _cells(figures: dict[str, Any]) -> list[str]:
    both, steps = figures["both"], figures["steps"]
    if not steps:
        return ["0"]
    shown = [figures["lm"]["epoch"], figures["vision"]["epoch"], both["epoch"], both["bound"], both["worst"]]
    cells = [f"{steps:,}", *(f"{value:.3f}" for value in shown), f"{1 - 1 / both['epoch']:.1%}"]
    return [*cells, f"{1 - figures['trained']['beyond']:.0%}"]


def _counts(text: str) -> list[int]:
    return [count(part) for part in text.split(",")]


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    tool = parser(
        "simulate",
        "DIR",
        "Say how long ranks would wait for each other, on any number of them; no media byte is read.",
        examples=(
            "packed/demo-qwen2_5_vl-neat-8192",
            "packed/demo-qwen2_5_vl-neat-8192 --data-parallel 2,4 --micro-batches 1,2",
            "packed/demo-qwen2_5_vl-neat-8192 --loader energon --workers 2 --json",
        ),
    )
    tool.add_argument("dataset", metavar="DIR", help="folder of a packed dataset")
    planned = "default: as laid out, or"
    who = tool.add_argument_group("who trains")
    who.add_argument("--data-parallel", type=_counts, metavar="N,...", help=f"ranks ({planned} 8)")
    who.add_argument("--workers", type=count, metavar="N", help=f"loader processes of each ({planned} 1)")
    who.add_argument("--micro-batches", type=_counts, metavar="N,...", help=f"packs of each in a step ({planned} 1)")
    who.add_argument("--loader", choices=LOADERS, default="plan", help="; ".join(map(": ".join, LOADERS.items())))
    who.add_argument("--split", choices=SPLITS, default="train", help="whose packs (default: train)")
    costs = tool.add_argument_group("what packs cost")
    costs.add_argument("--model", type=Path, metavar="FOLDER", help="of a config.json (default: as when it was packed)")
    tool.add_argument("--json", action="store_true", help="print all figures as JSON")
    given: argparse.Namespace = tool.parse_args(arguments)
    laid = topology_of(_manifest_of(DatasetFolder(given.dataset)))
    data_parallel = given.data_parallel or [laid.data_parallel if laid != Topology() else 8]
    sizes = given.micro_batches or [laid.micro_batches]
    worlds = [Topology(*world) for world in product(data_parallel, [given.workers or laid.workers], sizes)]
    found = simulate(given.dataset, worlds, given.loader, given.split, given.model)
    if given.json:
        print(json.dumps(asdict(found), indent=2))
    else:
        print_simulation(found)
    return 0


if __name__ == "__main__":
    run("simulate", main)
