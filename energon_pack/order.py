"""Give several packed datasets one common order: `python -m energon_pack.order OUT DIR[=WEIGHT] …`.

Two datasets, with the weights 30 and 70, become one order:

    text 30 ──┐                 OUT/.nv-meta: the tars of both, and the order of their packs;
    image 70 ─┴─ one order ──►  every step has even costs, and both datasets by their shares

Nothing is copied. Energon's own blend draws at random in each worker; `PackedTaskEncoder` reads this order as one
stream. Validation and test parts are read one after another, as Energon does. The folder of an order holds:

    OUT/.nv-meta/split.yaml, .info.json      paths of the tars of all datasets
                 order.npy                   numbers of all their packs, in the order that `PacksInOrder` reads
                 energon_pack.json           copied from a dataset; `parts` names all datasets
"""

import hashlib
import io
import json
import os
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from energon_pack.dataset.energon import write_energon_files
from energon_pack.dataset.files import PlanFile
from energon_pack.dataset.folder import DatasetFolder, dataset_paths_of_order_folder, manifest_digest
from energon_pack.dataset.manifest import MANIFEST, ORDER_FILE, select_manifest_with_longest_packs
from energon_pack.dataset.plan_file import items_from_table, num_members, read_columns_for_items
from energon_pack.dataset.shards import WrittenShard
from energon_pack.errors import PackError, amount
from energon_pack.metadataset import BlendEntry, read_blend_entry, refuse_incompatible, relative_path
from energon_pack.plan.epoch_draws import MANY_EPOCHS, EntryShare, compute_entry_shares
from energon_pack.plan.existing_packs import num_draws_by_pass, order_existing_packs
from energon_pack.plan.items import Items
from energon_pack.plan.packs import PackPlan, flops_of_packs, plan_packs_of_sizes
from energon_pack.plan.report import STEP_COSTS
from energon_pack.plan.settings import PackingConfig
from energon_pack.plan.splits import SPLITS
from energon_pack.run.command import make_tool_parser, positive_int, require_local_path, run_tool
from energon_pack.run.console import say
from energon_pack.run.files import META_FOLDER, write_atomically
from energon_pack.run.seeded_random import Ints
from energon_pack.run.untrusted_input import parse_yaml
from energon_pack.samples.flavors import packed_flavor_or_default
from energon_pack.sources.mixture import Entry as Asked
from energon_pack.sources.storage import absolute, real_path
from energon_pack.steps.cost import CostModel
from energon_pack.steps.evenness import evenness_figures
from energon_pack.steps.topology import Topology, reading_order


@dataclass(frozen=True)
class DatasetOfOrder:
    """One packed dataset of an order, which puts the packs of several datasets into one sequence."""

    name: str
    folder: DatasetFolder
    path: str  # as energon_pack.json writes it
    manifest: Mapping[str, Any]

    def split_parts(self) -> dict[str, list[str]]:
        """Return split → the names of its tars; raises PackError if split.yaml excludes packs."""
        split = parse_yaml(self.folder.read(f"{META_FOLDER}/split.yaml"))
        if split.get("exclude"):
            raise PackError(f"{self.folder}: split.yaml excludes packs: an order has whole tars")
        return {name: list(split["split_parts"].get(name) or ()) for name in SPLITS}

    def shard_counts(self) -> dict[str, int]:
        """Return the number of packs in each tar."""
        counts: dict[str, int] = self.folder.read_json_object(f"{META_FOLDER}/.info.json")["shard_counts"]
        return counts


def read_train_members(parts: Sequence[DatasetOfOrder]) -> tuple[Items, Ints, Ints]:
    """Read the members of all packs in the train splits of several datasets.

    Returns:
        the members; int64[packs] the number of members of each pack; int64[packs] the index of its dataset in `parts`.
    """
    tables, sizes, of_pack, of_member = [], list[Ints](), list[Ints](), list[Ints]()
    for number, part in enumerate(parts):
        plan = PlanFile(part.folder)
        by_shard = {table["output_shard"][0].as_py(): table for table in read_columns_for_items(plan, "output_shard")}
        counts = part.shard_counts()
        for shard in part.split_parts()["train"]:
            table = by_shard.get(shard)
            its_sizes = np.zeros(0, np.int64) if table is None else num_members(table)
            if table is None or len(its_sizes) != counts.get(shard):
                raise PackError(
                    f"{part.folder}: the plan has {len(its_sizes)} packs of {shard}, not {counts.get(shard)}"
                )
            tables.append(table)
            sizes.append(its_sizes)
            of_pack.append(np.full(len(its_sizes), number))
            of_member.append(np.full(table.num_rows, number))
    if not tables:
        raise PackError("no dataset has packs of the split train")
    entry = np.concatenate(of_member).astype(np.int16) if len(parts) > 1 else None
    items = items_from_table(pa.concat_tables(tables, promote_options="default"))  # some parts may have sounds
    items = items if entry is None else replace(items, entry=entry)
    return items, np.concatenate(sizes), np.concatenate(of_pack)


def _write_order_folder(
    out: Path, parts: Sequence[DatasetOfOrder], order: Ints, topology: Mapping[str, int], num_turns: int
) -> None:
    """Write the folder of an order, completely or not at all, in place of `out`.

    Args:
        order: int64, numbers of packs, counted over all `parts`, in reading order.
        num_turns: the number of passes over the datasets in `order`.
    """
    staging = out.with_name(f".{out.name}.partial-{os.getpid()}")
    staging.mkdir(parents=True)
    try:
        _write_order_files(staging, parts, order, topology, num_turns)
        if out.exists():
            shutil.rmtree(out)
        staging.rename(out)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _write_order_files(
    folder: Path, parts: Sequence[DatasetOfOrder], order: Ints, topology: Mapping[str, int], num_turns: int
) -> None:
    shards = [
        WrittenShard(f"{part.path}/{name}", counts[name], 0, 0, 0, split)
        for split in SPLITS
        for part in parts
        for counts in [part.shard_counts()]
        for name in part.split_parts()[split]
    ]
    longest = select_manifest_with_longest_packs(part.manifest for part in parts)
    write_energon_files(folder, shards, packed_flavor_or_default(longest["flavor"]), "typed")
    data = io.BytesIO()
    np.save(data, order)
    manifest = {key: value for key, value in longest.items() if key not in ("entries", "turns", "num_packs", "hashes")}
    manifest |= {
        "topology": dict(topology),
        "turns": num_turns,
        "splits": _sum_splits(parts),
        "num_packs": len(order),
        **{name: sum(part.manifest[name] for part in parts) for name in ("num_samples", "num_tokens")},
        **({"entries": [part.name for part in parts]} if len(parts) > 1 else {}),
        "parts": [{"name": part.name, "path": part.path, "digest": manifest_digest(part.folder)} for part in parts],
        "order": hashlib.sha256(data.getvalue()).hexdigest()[:16],
    }
    write_atomically(folder / META_FOLDER / ORDER_FILE, data.getvalue())
    write_atomically(folder / META_FOLDER / MANIFEST, json.dumps(manifest, indent=2, sort_keys=True).encode())


def _sum_splits(parts: Sequence[DatasetOfOrder]) -> dict[str, dict[str, int]]:
    """Add up the counts of packs, samples and tokens of the datasets, by split."""
    sums: dict[str, dict[str, int]] = {}
    for part in parts:
        for split, counts in part.manifest["splits"].items():
            of_split = sums.setdefault(split, dict.fromkeys(counts, 0))
            for name, number in counts.items():
                of_split[name] += number
    return sums


def write_pack_order(
    entries: list[BlendEntry],
    out_folder: str,
    topology: Topology,
    num_epochs: int = 1,
    seed: int = 0,
    relative: bool = False,
) -> None:
    """Write one order over the packs of several datasets, and print each dataset's share and how even steps are.

    Args:
        out_folder: the folder to write.
        topology: the ranks, workers and packs in a step for which steps are made even.
        num_epochs: how many epochs the order holds, each drawn anew.
        relative: write the datasets' paths relative to `out_folder`.
    """
    _refuse_incompatible(entries)
    parts = _datasets_of_order(entries, out_folder if relative else None)
    items, sizes, entry_of = read_train_members(parts)
    packs, cost = plan_packs_of_sizes(sizes), CostModel.from_json(entries[0].manifest["cost"])
    trained = packs.sum_per_pack(items.num_supervised)
    asked = [
        Asked(part.name, part.path, entry.given_weight, 1.0 if entry.given_weight is None else None)
        for part, entry in zip(parts, entries, strict=True)
    ]
    shares = compute_entry_shares(asked, entry_of, trained)
    times = [share.epochs for share in shares]
    counts = num_draws_by_pass(times, entry_of, trained, topology.unit_size, seed, num_epochs)
    order = order_existing_packs(items, packs, counts, PackingConfig(topology=topology), seed, cost)
    _write_order_folder(Path(out_folder), parts, order, asdict(topology), len(counts))
    _print_shares(shares, np.bincount(entry_of[order], trained[order], len(parts)))
    if topology.has_several_packs_per_step:
        _print_step_evenness(items, packs, order, topology, cost)
    say(f"written: {out_folder}, an order of {amount(len(order), 'pack')} of {amount(len(parts), 'dataset')}")


def _refuse_incompatible(entries: list[BlendEntry]) -> None:
    refuse_incompatible(entries, "samples")
    if twice := next((path for path, times in Counter(e.folder.path for e in entries).items() if times > 1), None):
        raise PackError(f"{twice} is named twice: give it once, with a larger weight")
    labels = [entry.manifest["content"]["labels"] for entry in entries]
    if other := next((number for number, its_own in enumerate(labels) if its_own != labels[0]), 0):
        raise PackError(
            f"{entries[other].folder} was packed with labels={labels[other]}, {entries[0].folder} with {labels[0]}:"
            " training reads packs of one order in one way"
        )
    if nested := next((entry.folder for entry in entries if entry.manifest.get("parts")), None):
        raise PackError(f"{nested} is an order itself: name the datasets that it is of")


def _datasets_of_order(entries: list[BlendEntry], start: str | None) -> list[DatasetOfOrder]:
    """Return the datasets with distinct names (the folder's name, numbered if two are equal) and their paths.

    `start`: the folder that paths are relative to; None: absolute paths.
    """
    times = Counter(entry.folder.name for entry in entries)
    parts = []
    for number, entry in enumerate(entries, 1):
        name = entry.folder.name
        path = entry.folder.energon_path if start is None else relative_path(entry.folder, start)
        parts.append(
            DatasetOfOrder(name if times[name] == 1 else f"{name}-{number}", entry.folder, path, entry.manifest)
        )
    return parts


def _print_shares(shares: list[EntryShare], tokens: np.ndarray) -> None:
    for share, number in zip(shares, tokens.tolist(), strict=True):
        asked = "" if share.requested_share is None else f" (asked: {share.requested_share:.2%})"
        often = ": its packs come often" if share.epochs > MANY_EPOCHS else ""
        part = f"{number / max(1, tokens.sum()):.2%} of the trained tokens"
        say(f"{share.name}: {part}{asked}, each pack {share.epochs:.2f} times{often}")


def _print_step_evenness(items: Items, packs: PackPlan, order: Ints, topology: Topology, cost: CostModel) -> None:
    costs, trained = flops_of_packs(items, packs, cost), packs.sum_per_pack(items.num_supervised)
    read = order[reading_order(len(order), topology)]
    spread = evenness_figures(costs, trained, topology.data_parallel, topology.micro_batches, read)
    waits = ", ".join(f"{word} {spread[name]['epoch']:.3f}" for name, word in STEP_COSTS.items())
    say(f"steps: {spread['steps']:,}; 1 is the time of an epoch without waiting: {waits}")


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    tool = make_tool_parser(
        "order",
        "OUT DIR[=WEIGHT]...",
        "Write one order over the packs of several datasets, for training that reads them as if packed together.",
        examples=("packed/both packed/text=30 packed/image=70 --ranks 8", "packed/both packed/a packed/b"),
    )
    tool.add_argument("out", metavar="OUT", help="the folder to write, which holds no packs")
    tool.add_argument(
        "datasets",
        nargs="+",
        metavar="DIR[=WEIGHT]",
        help="packed datasets; a WEIGHT is a share of the trained tokens, and without each pack comes once in an epoch",
    )
    steps = tool.add_argument_group("who trains: steps are even for them")
    steps.add_argument("--ranks", type=positive_int, default=1, metavar="N", help="data-parallel ranks (1)")
    steps.add_argument("--workers", type=positive_int, default=1, metavar="N", help="of the loader of each rank (1)")
    steps.add_argument(
        "--micro-batches", type=positive_int, default=1, metavar="N", help="packs of each rank in a step (1)"
    )
    drawn = tool.add_argument_group("how packs come")
    drawn.add_argument(
        "--epochs", type=positive_int, default=1, metavar="N", help="each draws anew, in another order (1)"
    )
    drawn.add_argument("--seed", type=int, default=0, metavar="N", help="of the draws and of the order (0)")
    written = tool.add_argument_group("what is written")
    written.add_argument("--relative", action="store_true", help="paths of the datasets relative to OUT")
    written.add_argument("--overwrite", action="store_true", help="replace OUT, if it is an order")
    options = tool.parse_args(arguments)
    require_local_path(options.out, ": an order is a folder of this machine; the datasets may be on object stores")
    out = real_path(absolute(os.path.expanduser(options.out)))
    is_order = os.path.isdir(out) and bool(dataset_paths_of_order_folder(DatasetFolder(out)))
    if os.path.exists(out) and not (options.overwrite and is_order):
        hint = "--overwrite replaces it" if is_order else "it is no order over datasets: choose another name"
        raise PackError(f"{options.out} exists; {hint}")
    topology = Topology(options.ranks, options.workers, options.micro_batches)
    topology.check()
    entries = [read_blend_entry(text) for text in options.datasets]
    write_pack_order(entries, out, topology, options.epochs, options.seed, options.relative)
    return 0


if __name__ == "__main__":
    run_tool("order", main)
