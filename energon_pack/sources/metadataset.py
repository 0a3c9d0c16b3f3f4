"""Read a metadataset of Energon as a mixture: a blend's weights are shares of the samples.

__module__: megatron.energon
__class__: MetadatasetV2
splits: {train: {blend: [{path: ./charts, weight: 4}, …]}}

The first version has `datasets` in place of `blend`; `blend_epochized` says how often each sample comes.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from energon_pack.errors import PackError
from energon_pack.run.console import say
from energon_pack.sources.mixture import Entry, in_folder, object_in, stem_of, with_own_names
from energon_pack.sources.storage import absolute, folder_of

#: keys that are read, or that do not change a sample
_READ = {
    "path",
    "weight",
    "repetitions",
    "split_part",
    "split_config",
    "dataset_config",
    "shuffle_over_epochs_multiplier",
    "subflavors",
}
_DEEPEST = 8


def metadataset_entries(path: str, value: Mapping[str, Any], split: str | None) -> list[Entry] | None:
    """Read the entries of a metadataset; None: the value is no metadataset.

    Args:
        split: the split whose entries are taken; None: train.
    """
    return with_own_names(list(_entries(path, value, split or "train", 0))) if _is_metadataset(value) else None


def _is_metadataset(value: Mapping[str, Any] | None) -> bool:
    return value is not None and "megatron.energon" in str(value.get("__module__"))


def _entries(path: str, value: Mapping[str, Any], split: str, depth: int) -> Iterator[Entry]:
    """Yield the entries of a metadataset, and of others that it names, with weights that sum to 1, or with epochs."""
    splits = value.get("splits")
    if not isinstance(splits, Mapping) or not isinstance(splits.get(split), Mapping):
        there = ", ".join(map(str, splits)) if isinstance(splits, Mapping) else "none"
        raise PackError(f"{path}: no split {split} with datasets; there are: {there}")
    if depth > _DEEPEST:
        raise PackError(f"{path}: metadatasets name each other")
    blend = splits[split]
    kind = next((kind for kind in ("blend", "datasets", "blend_epochized", "path") if kind in blend), None)
    if kind is None:
        raise PackError(
            f"{path}: splits.{split} has {', '.join(map(str, blend))}: blend, blend_epochized and path are read"
        )
    items = [blend] if kind == "path" else blend[kind]
    if not isinstance(items, list) or not all(isinstance(item, Mapping) and item.get("path") for item in items):
        raise PackError(f"{path}: splits.{split}.{kind} is no list of datasets with paths")
    if any("subflavors" in item for item in items):
        say(f"{path}: subflavors are not read: packs of one plan are all alike")
    has_weights = kind in ("blend", "datasets")
    factors = [_factor(path, item, "weight" if has_weights else "repetitions") for item in items]
    total = sum(factors) if has_weights else 1.0
    if not total:
        raise PackError(f"{path}: splits.{split}.{kind}: all weights are 0")
    for item, factor in zip(items, factors, strict=True):
        yield from _of_item(path, item, split, factor / total, has_weights, depth)


def _of_item(
    path: str, item: Mapping[str, Any], split: str, factor: float, has_weights: bool, depth: int
) -> Iterator[Entry]:
    for key in item:
        if key not in _READ:
            raise PackError(f"{path}: {item['path']}: {key} is not read: leave it out, or pack that dataset alone")
    place = in_folder(folder_of(absolute(path)), str(item["path"]))
    part = str(item.get("split_part") or split)
    inside = object_in(place)
    if inside is None or not _is_metadataset(inside):
        weight, epochs = (factor, None) if has_weights else (None, factor)
        settings = {"split": None if os.path.isfile(place) else part}
        yield Entry(stem_of(place), place, weight, epochs, settings=settings, weight_of="samples")
        return
    for entry in _entries(place, inside, part, depth + 1):
        if (entry.weight is not None) != has_weights:
            raise PackError(
                f"{path}: {item['path']} is a blend by {'epochs' if has_weights else 'weights'}, this one is not"
            )
        if entry.weight is not None:
            yield replace(entry, weight=entry.weight * factor)
        else:
            yield replace(entry, epochs=(entry.epochs or 0.0) * factor)


def _factor(path: str, item: Mapping[str, Any], key: str) -> float:
    value = item.get(key, 1)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e6:
        raise PackError(f"{path}: {item['path']}: {key} is {value!r}, not a number from 0")
    return float(value)
