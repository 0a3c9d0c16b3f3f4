"""Write one order over the packs of several datasets: a folder without packs, which Energon reads as one dataset.

    OUT/.nv-meta/split.yaml, .info.json      paths of the tars of all datasets
                 order.npy                   numbers of all their packs, in the order that `PacksInOrder` reads
                 energon_pack.json           copied from a dataset; `parts` names all datasets

Nothing is copied. Validation and test parts are read one after another, as Energon does.
"""

import hashlib
import io
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from energon_pack.dataset.energon import write_energon_files
from energon_pack.dataset.files import PlanFile
from energon_pack.dataset.folder import DatasetFolder, manifest_digest
from energon_pack.dataset.manifest import MANIFEST, ORDER_FILE, longest_manifest
from energon_pack.dataset.plan_counts import items_from_table, num_members, read_counted_columns
from energon_pack.dataset.shards import WrittenShard
from energon_pack.errors import PackError
from energon_pack.plan.items import Items
from energon_pack.plan.splits import SPLITS
from energon_pack.run.files import META_FOLDER, write_whole
from energon_pack.run.plain_data import parse_yaml
from energon_pack.run.seeded_random import Ints
from energon_pack.samples.flavors import packed_flavor_or_default


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
        by_shard = {table["output_shard"][0].as_py(): table for table in read_counted_columns(plan, "output_shard")}
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


def write_order_folder(
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
    longest = longest_manifest(part.manifest for part in parts)
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
    write_whole(folder / META_FOLDER / ORDER_FILE, data.getvalue())
    write_whole(folder / META_FOLDER / MANIFEST, json.dumps(manifest, indent=2, sort_keys=True).encode())


def _sum_splits(parts: Sequence[DatasetOfOrder]) -> dict[str, dict[str, int]]:
    """Add up the counts of packs, samples and tokens of the datasets, by split."""
    sums: dict[str, dict[str, int]] = {}
    for part in parts:
        for split, counts in part.manifest["splits"].items():
            of_split = sums.setdefault(split, dict.fromkeys(counts, 0))
            for name, number in counts.items():
                of_split[name] += number
    return sums
