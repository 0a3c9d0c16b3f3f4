"""What of a source is packed, where Energon has prepared it: its split, and what it excludes.

Only `split.yaml` (or `split.json`) and `.info.json` are read; the other YAML of a prepared folder can run code.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from braceexpand import braceexpand

from energon_pack.errors import PackError
from energon_pack.manifest import META_FOLDER


@dataclass(frozen=True)
class Selection:
    """Shards and samples of one folder, by names relative to it."""

    #: shards of the split; None: all
    shards: frozenset[str] | None = None
    #: shards left out
    excluded_shards: frozenset[str] = frozenset()
    #: samples left out, as (shard, key)
    excluded_samples: frozenset[tuple[str, str]] = frozenset()
    #: samples in each shard, as far as the folder says
    shard_counts: dict[str, int] = field(default_factory=dict)

    def has(self, shard: str) -> bool:
        return shard not in self.excluded_shards and (self.shards is None or shard in self.shards)


def read_selection(folder: Path, split: str | None) -> Selection:
    """What `split` of a folder selects; everything that is not excluded where no split is asked for.

    Raises:
        PackError: a split of a folder that has none of that name, or no splits at all.
    """
    splits = _load(folder / META_FOLDER, ("split.yaml", "split.json"))
    if splits is None:
        if split is not None:
            raise PackError(f"source.split={split}: {folder} has no {META_FOLDER}/split.yaml")
        return Selection()
    parts = splits.get("split_parts") or {}
    if split is not None and split not in parts:
        raise PackError(f"source.split={split}: {folder} has the splits {', '.join(parts)}")
    excluded = {name for entry in splits.get("exclude") or () for name in braceexpand(entry)}
    samples = {entry for entry in excluded if "/" in entry and not entry.endswith(".tar")}
    info = _load(folder / META_FOLDER, (".info.json", ".info.yaml")) or {}
    return Selection(
        shards=None if split is None else frozenset(name for entry in parts[split] for name in braceexpand(entry)),
        excluded_shards=frozenset(excluded - samples),
        excluded_samples=frozenset((f"{shard}.tar", key) for shard, _, key in (e.partition(".tar/") for e in samples)),
        shard_counts=info.get("shard_counts") or {},
    )


def _load(folder: Path, names: tuple[str, ...]) -> dict[str, Any] | None:
    for name in names:
        path = folder / name
        if not path.exists():
            continue
        try:
            value = json.loads(path.read_text()) if path.suffix == ".json" else yaml.safe_load(path.read_text())
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise PackError(f"{path} can't be read: {' '.join(str(error).split())[:200]}") from None
        if not isinstance(value, dict):
            raise PackError(f"{path} is a {type(value).__name__}, not a mapping")
        return value
    return None
