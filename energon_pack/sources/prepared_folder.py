"""Read the split and the excludes of a folder that Energon has prepared.

Only `split.yaml` (or `split.json`) and `.info.json` are read; the other YAML of a prepared folder can run code.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from braceexpand import braceexpand

from energon_pack.errors import PackError
from energon_pack.run.files import META_FOLDER
from energon_pack.run.untrusted_input import BoundExceeded, bounded_memory_and_time, parse_json, parse_yaml
from energon_pack.sources.storage import absolute, folder_of, read_whole

_MAX_NAMES_BYTES, _MAX_NAMES_SECONDS = 1 << 30, 60.0  # what the names of a split may take: bytes, seconds of the CPU


@dataclass(frozen=True)
class PreparedFolder:
    """A folder that Energon has prepared; names of shards are relative to it."""

    folder: str
    #: shards of the requested split; None: all
    shards: frozenset[str] | None = None
    #: shards left out
    excluded_shards: frozenset[str] = frozenset()
    #: keys of samples left out, by shard
    excluded_keys: dict[str, frozenset[str]] = field(default_factory=dict)
    #: samples in each shard
    shard_counts: dict[str, int] = field(default_factory=dict)


class LeftOutSamples(NamedTuple):
    """The samples of a tar that `source.split` or Energon's `exclude` leave out."""

    keys: frozenset[str] | None = frozenset()  # keys that are left out; None: the whole tar is left out
    num_samples: int = 0  # samples that are left out, as far as its folder says


class SplitSelection:
    """Tells which samples of a tar are left out by the nearest prepared folder above it. `split`: None: all splits."""

    def __init__(self, split: str | None):
        self._split = split
        self._prepared: dict[str, PreparedFolder | None] = {}

    def left_out(self, tar: str) -> LeftOutSamples:
        """Return the samples of a tar that are left out; PackError: no folder above it has the split that is set."""
        tar = absolute(tar)
        prepared = self._prepared_around(folder_of(tar))
        if prepared is None:
            if self._split is not None:
                raise PackError(f"source.split={self._split}: {tar} lies in no folder with {META_FOLDER}/split.yaml")
            return LeftOutSamples()
        name = Path(os.path.relpath(tar, prepared.folder)).as_posix()
        if name in prepared.excluded_shards or (prepared.shards is not None and name not in prepared.shards):
            return LeftOutSamples(None, prepared.shard_counts.get(name, 0))
        keys = prepared.excluded_keys.get(name, frozenset[str]())
        return LeftOutSamples(keys, len(keys))

    def prepared_folder(self, tar: str) -> str | None:
        """Return the nearest prepared folder above a tar; None: there is none."""
        prepared = self._prepared_around(folder_of(absolute(tar)))
        return None if prepared is None else prepared.folder

    def check_complete(self, folder: str, tars: Iterable[str]) -> None:
        """Raise PackError if a prepared folder lacks tars that its split.yaml names. `tars`: those that were found."""
        prepared = self._prepared_around(absolute(folder))
        if prepared is None or prepared.folder != absolute(folder):
            return
        paths = set(map(absolute, tars))
        missing = sorted(name for name in prepared.shards or () if os.path.join(prepared.folder, name) not in paths)
        if missing:
            raise PackError(f"source.split={self._split}: {folder} lacks {len(missing)} of its shards: {missing[0]} …")

    def _prepared_around(self, folder: str) -> PreparedFolder | None:
        if folder not in self._prepared:
            above = folder_of(folder)
            prepared = read_prepared_folder(folder, self._split)
            self._prepared[folder] = self._prepared_around(above) if prepared is None and above != folder else prepared
        return self._prepared[folder]


def read_prepared_folder(folder: str, split: str | None, knob: str = "source.split") -> PreparedFolder | None:
    """Read which shards and samples of a folder belong to a split; None: Energon has not prepared the folder.

    `split`: None: all splits; `knob`: the setting that errors name.
    """
    splits = _load_first_existing(folder, ("split.yaml", "split.json"))
    if splits is None:
        return None
    where = f"{folder}/{META_FOLDER}/split.yaml"
    parts = splits.get("split_parts")
    if not isinstance(parts, dict):
        raise PackError(f"{where}: split_parts is {parts!r}, not a mapping")
    if split is not None and split not in parts:
        raise PackError(f"{knob}={split}: {folder} has the splits {', '.join(map(str, parts))}")
    excluded_shards: set[str] = set()
    excluded_keys: dict[str, set[str]] = {}
    for name in _expand_names(splits.get("exclude"), f"{where}: exclude"):
        shard, mark, key = name.partition(".tar/")
        if mark:
            excluded_keys.setdefault(f"{shard}.tar", set()).add(key)
        else:
            excluded_shards.add(name)
    info = _load_first_existing(folder, (".info.json", ".info.yaml")) or {}
    counts = info.get("shard_counts")
    return PreparedFolder(
        folder=folder,
        shards=None if split is None else frozenset(_expand_names(parts[split], f"{where}: split_parts.{split}")),
        excluded_shards=frozenset(excluded_shards),
        excluded_keys={shard: frozenset(keys) for shard, keys in excluded_keys.items()},
        shard_counts=counts if isinstance(counts, dict) else {},
    )


def _expand_names(value: Any, where: str) -> list[str]:
    """Return a list of names with their braces expanded, as `{0..9}`; null gives an empty list."""
    if value is not None and not (isinstance(value, list) and all(isinstance(name, str) for name in value)):
        raise PackError(f"{where} is {str(value)[:80]!r}, not a list of names")
    try:
        with bounded_memory_and_time(_MAX_NAMES_BYTES, _MAX_NAMES_SECONDS):
            return [name for entry in value or () for name in braceexpand(entry)]
    except (ValueError, BoundExceeded) as error:  # unbalanced braces, or {0..9999999999}
        raise PackError(f"{where}: {error}") from None


def _load_first_existing(folder: str, names: tuple[str, ...]) -> dict[str, Any] | None:
    for name in names:
        path = os.path.join(folder, META_FOLDER, name)
        try:
            data = read_whole(path)
            if data is None:
                continue
            value = parse_json(data) if name.endswith(".json") else parse_yaml(data)
        except PackError:  # a store does not answer
            raise
        except (OSError, ValueError) as error:
            raise PackError(f"{path} can't be read: {' '.join(str(error).split())[:200]}") from None
        if not isinstance(value, dict):
            raise PackError(f"{path} is a {type(value).__name__}, not a mapping")
        return value
    return None
