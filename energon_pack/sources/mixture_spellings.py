"""Read a mixture as other tools write it.

    {name: {annotation, root, repeat_time}}         InternVL's meta, JSON
    datasets: [{json_path, sampling_strategy}]      LLaVA-OneVision, YAML
    splits: {train: {blend: [{path, weight}]}}      Energon's Metadatasets, YAML

annotation, json_path, path → path · root → media_root · repeat_time, repetitions → epochs · weight → weight, of samples
"""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from glob import glob
from itertools import takewhile
from typing import Any

from energon_pack.errors import PackError
from energon_pack.run.address import is_address
from energon_pack.run.console import say
from energon_pack.sources.jsonl.meta_files import MetaEntryChooser, read_meta_entries, refuse_other_object_store
from energon_pack.sources.media_files import MediaMap, map_advice, parse_media_map, replace_mapped_prefix
from energon_pack.sources.mixture import (
    Entry,
    absolute_in,
    make_default_entry_name,
    read_entry,
    read_nonnegative_number,
    read_yaml_object,
)
from energon_pack.sources.sample_ratio import TakenRows
from energon_pack.sources.settings import SourceConfig
from energon_pack.sources.storage import absolute, folder_of, is_file

_INTERNVL_KEYS = ("annotation", "root", "repeat_time", "length", "data_augment", "max_dynamic_patch")
_ONEVISION_KEYS = ("json_path", "sampling_strategy")
_STRATEGY = re.compile(r"(first|end|random): *(?:(\d+)|(\d+(?:\.\d+)?)%)")
#: forms of a split of a Metadataset, with the key that says how often an item comes
_ENERGON_FORMS = {"blend": "weight", "datasets": "weight", "blend_epochized": "repetitions", "path": ""}
#: keys of Metadatasets for a trainer's code, and for Energon's shuffling
_ENERGON_HARMLESS = ("subflavors", "subflavor", "shuffle_over_epochs_multiplier")
_ENERGON_DEFAULTS = {"dataset_config": "dataset.yaml", "split_config": "split.yaml"}
_MAX_DEPTH = 8  # of Metadatasets that name each other


class _NotThere(PackError):
    """A mixture names what is in none of the places that it may lie in."""


@dataclass(frozen=True)
class _NamedPlaces:
    """Finds what a mixture of another tool names: in the mixture's folder, or in that of the run."""

    cwd: str
    media_map: MediaMap
    remote_media: bool

    def folders_around(self, path: str) -> list[str]:
        """Return the folders that names in a file are relative to."""
        return [folder_of(absolute(path)), self.cwd]

    def find(self, where: str, named: Any, folders: Sequence[str]) -> str:
        """Return the path of a file or folder by its name, in the first folder that has it; _NotThere: none has it."""
        if not isinstance(named, str) or not named:
            raise PackError(f"{where}: no path: {named!r}")
        if (named_here := replace_mapped_prefix(os.path.expanduser(named), self.media_map)) == named:
            refuse_other_object_store(where, named, folders[0], self.remote_media)
        places = [*dict.fromkeys(absolute_in(folder, named_here) for folder in folders)]
        place = next((place for place in places if is_address(place) or os.path.exists(place) or glob(place)), None)
        if place is None:
            raise _NotThere(f"{where}: no {', and no '.join(places)} ({map_advice(os.path.dirname(named) or named)})")
        return place


def entries_in_yaml(path: str, value: Mapping[str, Any], settings: SourceConfig, cwd: str) -> list[Entry] | None:
    """Read the entries of another tool's mixture from a YAML file: its path and content; None: it is no mixture.

    `cwd`: where the paths in it are looked for, too; our own spelling has paths beside the file alone.
    """
    places = _NamedPlaces(cwd, parse_media_map(settings.media_map), settings.remote_media)
    if isinstance(value.get("splits"), dict):
        entries = [*_energon_entries(path, value["splits"], settings.split or "train", places)]
        names = _names_apart([str(entry.path) for entry in entries])
        once = [replace(entry, epochs=1.0) if entry.weight is entry.epochs is None else entry for entry in entries]
        return [replace(entry, name=name, may_repeat=True) for entry, name in zip(once, names, strict=True)]
    if isinstance(listed := value.get("datasets"), list):
        if wrong := [item for item in listed if not isinstance(item, dict) or not item.get("json_path")]:
            raise PackError(f"{path}: an entry of `datasets` has no json_path: {str(wrong[0])[:80]}")
        names = _names_apart([str(item["json_path"]) for item in listed])
        return [*_file_entries(path, dict(zip(names, listed, strict=True)), _ONEVISION_KEYS, settings.datasets, places)]
    return None


def entries_in_json(path: str, settings: SourceConfig, cwd: str) -> list[Entry] | None:
    """Read the entries of InternVL's meta from a JSON file; None: it is none. `cwd`: as for `entries_in_yaml`."""
    meta = read_meta_entries(path) if is_file(path) else None
    if not meta or not any("annotation" in item for item in meta.values()):
        return None
    places = _NamedPlaces(cwd, parse_media_map(settings.media_map), settings.remote_media)
    return [*_file_entries(path, meta, _INTERNVL_KEYS, settings.datasets, places)]


def _file_entries(
    path: str, meta: dict[str, dict[str, Any]], keys: Sequence[str], names: Sequence[str] | None, places: _NamedPlaces
) -> Iterator[Entry]:
    """Yield an entry for each file of InternVL's meta or LLaVA-OneVision's YAML.

    `keys`: those that the tool has, the file's path first; `names`: of the entries that are taken, None: all.
    """
    choice, folders = MetaEntryChooser(names), places.folders_around(path)
    chosen = choice.choose(path, meta)
    choice.check()
    if unread := sorted({str(key) for item in chosen.values() for key in item if key not in keys}):
        say(f"{path}: keys that nothing reads: {', '.join(unread)}")
    if augmented := [name for name, item in chosen.items() if item.get("data_augment") and "data_augment" in keys]:
        say(f"{path}: data_augment is not done, media are packed as they are: {', '.join(augmented)}")
    for name, whole in chosen.items():
        where, item = f"{path}: {name}", {key: whole.get(key) for key in keys}
        named, of_source = str(item[keys[0]] or ""), dict[str, Any](datasets=None)
        file = places.find(f"{where}: {keys[0]}", item[keys[0]], folders)
        here = replace_mapped_prefix(os.path.expanduser(named), places.media_map)
        root = item.get("root") or ("" if "root" not in keys or os.path.isabs(here) or is_address(here) else ".")
        if root:  # it lies in the same folder as the file, and media without a root do
            near = sorted(folders, key=lambda base: absolute_in(base, named) != file)
            try:
                of_source["media_root"] = places.find(f"{where}: root", root, near)
            except _NotThere as error:  # a set of text has no media
                say(f"{error}; media are looked for as without it")
        times, tiles = read_nonnegative_number(where, item, "repeat_time"), item.get("max_dynamic_patch")
        if tiles is not None and (type(tiles) is not int or tiles < 1):
            raise PackError(f"{where}: max_dynamic_patch is {tiles!r}, not a number of tiles")
        if times is not None and times > 1 and times % 1:
            say(f"{where}: repeat_time={times:g}: some samples come once more than others; InternVL has whole numbers")
        taken = _taken_rows(where, item.get("sampling_strategy") or "all")
        if times is not None and times < 1:
            taken, times = TakenRows("first", times, "share"), 1.0
        entry = {"name": name.replace("/", "-").lstrip(".") or "source", "path": file, "epochs": times}
        yield replace(read_entry(where, entry), settings=of_source, taken=taken, max_tiles=tiles, may_repeat=True)


def _taken_rows(where: str, strategy: Any) -> TakenRows | None:
    """Read LLaVA-OneVision's `sampling_strategy`; None: all rows."""
    if strategy == "all":
        return None
    if matched := _STRATEGY.fullmatch(str(strategy)):
        place: Any = matched[1]
        amount = float(matched[2] or matched[3])
        if amount or place != "end":
            return TakenRows(place, amount, "rows" if matched[2] else "%")
    raise PackError(
        f"{where}: sampling_strategy={strategy}: all, first:N, end:N and random:N are read; N is a number of rows or a"
        " share as 10%, and not 0 after end"
    )


def _energon_entries(path: str, splits: Any, split: str, places: _NamedPlaces, depth: int = 0) -> Iterator[Entry]:
    """Yield the entries of a split of a Metadataset, and of those that it names.

    They have weights that sum to 1, or epochs; a single dataset has neither.
    """
    where, group = f"{path}: splits.{split}", splits.get(split) if isinstance(splits, Mapping) else None
    if not isinstance(group, Mapping):
        raise PackError(f"{path}: no split {split} among {', '.join(map(str, splits or ()))}: source.split names one")
    form = next((form for form in _ENERGON_FORMS if form in group), "")
    items, key = [group] if form == "path" else group.get(form), _ENERGON_FORMS.get(form, "")
    _refuse_keys(where, {} if form == "path" else group, form)
    if depth > _MAX_DEPTH or not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
        raise PackError(f"{where}: no list of datasets, or one within itself: {str(group)[:80]}")
    for item in items:
        _refuse_keys(where, item, "path", "split_part", key, *_ENERGON_HARMLESS)
    if harmless := [name for name in _ENERGON_HARMLESS if any(name in item for item in items)]:
        say(f"{path}: for Energon's loader, and not read: {', '.join(harmless)}")
    numbers = [read_nonnegative_number(where, item, key) for item in items]
    factors = [1.0 if number is None else number for number in numbers]
    total = sum(factors) if key == "weight" else 1.0
    for item, factor in zip(items, factors, strict=True):
        place = places.find(where, item.get("path"), places.folders_around(path))
        inside, part = read_yaml_object(place), str(item.get("split_part") or split)
        of_source = {"split": None if os.path.isfile(place) or place.endswith(".jsonl") else part}
        alone = Entry("", place, None, None, settings=of_source, weight_of="samples")
        nested = [alone] if inside is None else _energon_entries(place, inside.get("splits"), part, places, depth + 1)
        for entry in nested:
            nested_times = entry.epochs if entry.weight is None else entry.weight
            times = (1.0 if nested_times is None else nested_times) * factor / (total or 1.0)
            if key and nested_times is not None and (entry.weight is None) is (key == "weight"):
                raise PackError(f"{where}: {item['path']} has weights, and {form} has none, or the other way round")
            if key:
                entry = replace(entry, weight=times) if key == "weight" else replace(entry, epochs=times)
            yield entry


def _refuse_keys(where: str, item: Mapping[str, Any], *read: str) -> None:
    """Raise PackError for a key of a Metadataset that would change its samples."""
    if "join" in item:
        raise PackError(f"{where}: join makes a sample of several datasets, and is no mixture: write its samples")
    for key in item:
        if key not in read and item[key] != _ENERGON_DEFAULTS.get(key):
            raise PackError(f"{where}: {key} is not read: leave it out, or pack that dataset by its path")


def _names_apart(paths: Sequence[str]) -> list[str]:
    """Name paths by their last part; where these are equal, with the folders that differ, and then by number."""
    names = [*map(make_default_entry_name, paths)]
    for name in [name for name, times in Counter(names).items() if times > 1]:
        same = [number for number, each in enumerate(names) if each == name]
        folders = [paths[number].rstrip("/").split("/")[:-1] for number in same]
        common = takewhile(lambda steps: len({*steps}) == 1, zip(*folders, strict=False))
        num_common = len([*common])  # no name tells where all of them lie
        for number, steps in zip(same, folders, strict=True):
            names[number] = "-".join([*filter(None, (step.strip(".") for step in steps[num_common:])), name])
    earlier = [names[:number].count(name) for number, name in enumerate(names)]
    return [f"{name}-{number + 1}" if number else name for name, number in zip(names, earlier, strict=True)]
