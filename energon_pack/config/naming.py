"""Select the settings that change the bytes of a dataset, and name its folder after them; find the cache beside it."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from energon_pack.config import Format, Overlong, PackConfig, plain
from energon_pack.plan.settings import SharedBeginnings
from energon_pack.run.address import is_address, tidy_address
from energon_pack.run.files import user_cache_folder
from energon_pack.samples.settings import without_unset_newer_settings
from energon_pack.sources.storage import path_in
from energon_pack.templates.identity import labels_without_new_defaults
from energon_pack.templates.settings import Expand
from energon_pack.version import VERSION

#: nodes of the config that the bytes of a dataset depend on
_CONTENT_NODES = "model", "media", "labels", "packing", "source", "output"
#: Settings that change no byte of a dataset. `model.processor` is a place; the processor's content is in the
#: fingerprint.
_NON_CONTENT_KEYS = {
    "model": {"processor"},
    "source": {"path", "media_root", "media_map", "remote_media", "on_damaged"},
    "packing": {"max_dropped_tokens"},
    "output": {"dir", "name", "overwrite"},
}
_PLACE_KEYS = {"path", "media_root", "media_map"}  # of an entry of a mixture
_KEYS_IN_NAME = {"packing.layout", "packing.max_token_len"}


def content_settings(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the settings that a dataset's bytes depend on, by node: no path, no number of workers, no processor.

    `values`: all settings of a run by node, as `plain` and report.json have them.
    """
    nodes = {node: values[node] for node in _CONTENT_NODES}
    nodes["plan"] = {"seed": values["seed"]}
    if nodes["packing"]["overlong"] == Overlong.auto.value:  # it writes the same bytes as overlong=drop
        nodes["packing"] = {**nodes["packing"], "overlong": Overlong.drop.value}
    nodes["labels"] = _labels_content(nodes["labels"])
    # datasets that were packed before these existed, or with `source.slice`, keep their content
    nodes["source"] = {**without_unset_newer_settings(nodes["source"]), "slice": None}
    if isinstance(mixed := nodes["source"].get("path"), dict):
        entries = {name: {key: item[key] for key in item if key not in _PLACE_KEYS} for name, item in mixed.items()}
        nodes["source"] = {**nodes["source"], "mixture": entries}
    if nodes["packing"].get("share") == SharedBeginnings.none:
        unshared = ("share", "share_min_tokens")
        nodes["packing"] = {key: value for key, value in nodes["packing"].items() if key not in unshared}
    later = {"epochs": 1, "max_audios": None, "max_audio_tokens": None}  # as above
    nodes["packing"] = {key: value for key, value in nodes["packing"].items() if value != later.get(key, ...)}
    if nodes["output"].get("messages", True):  # as above
        nodes["output"] = {key: value for key, value in nodes["output"].items() if key != "messages"}
    return {
        node: {key: value for key, value in items.items() if key not in _NON_CONTENT_KEYS.get(node, ())}
        for node, items in nodes.items()
    }


def _labels_content(labels: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out settings of `labels` that were added later and have their defaults: old datasets keep their names.

    A loader does not need these settings: members of packs are expanded already.
    """
    expand, window = labels.get("expand", Expand.none.value), labels.get("window_images")
    unset = {"expand"} if expand == Expand.none.value else set()
    unset |= {"window_images", "window_text"} if window is None else set()
    return {name: value for name, value in labels_without_new_defaults(labels).items() if name not in unset}


def are_same_settings(before: Mapping[str, Any], ours: Mapping[str, Any]) -> bool:
    """Say whether two results of `content_settings` are equal; one may have been read from JSON.

    `source.format=auto` equals any format, because a run that has looked at its source replaces `auto`.
    """
    both = [json.loads(json.dumps(settings)) for settings in (before, ours)]
    formats = [settings["source"].pop("format", None) for settings in both]
    return both[0] == both[1] and (formats[0] == formats[1] or Format.auto in formats)


def shards_identity(settings: Mapping[str, Any], key_prefix: str, source: Sequence[tuple[str | int, ...]]) -> str:
    """Return a SHA-256 of all that the shards' bytes depend on: a killed run's shards are reused if it is equal."""
    content = json.dumps([VERSION, settings, key_prefix, source], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def is_in_name_hash(key: str) -> bool:
    """Say whether a setting (`packing.max_images`) changes the hash in `output_name`."""
    node, _, name = key.partition(".")
    is_content = node == "seed" or (node in _CONTENT_NODES and name not in _NON_CONTENT_KEYS.get(node, ()))
    return is_content and key not in _KEYS_IN_NAME


def output_name(config: PackConfig, defaults: PackConfig, swept: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return `<source>-<model>-<layout>-<max_token_len>`, and a hash of the other non-default content settings.

    Args:
        defaults: the config with the same choice of groups and no override.
        swept: values of settings that are no content settings, but differ between jobs of a sweep: source, processor.
    """
    name = f"{_source_name(config.source.path)}-{_file_name(config.model.name)}"
    name += f"-{config.packing.layout.value}-{config.packing.max_token_len}"
    ours, default_settings = content_settings(plain(config)), content_settings(plain(defaults))
    changed = {
        f"{node}.{key}": value
        for node, items in ours.items()
        for key, value in items.items()
        if value != default_settings[node].get(key) and f"{node}.{key}" not in _KEYS_IN_NAME
    }
    changed |= swept
    if changed:
        name += "-" + hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()[:6]
    return name


def _source_name(path: Any) -> str:
    if isinstance(path, Mapping):
        return "mixture"
    if path is None:
        return "demo"
    names = []
    for entry in path if isinstance(path, list) else [path]:
        fixed = re.split(r"[^/]*[*?\[]", entry)[0]  # the folders of a glob before its first wildcard
        name = Path(fixed).expanduser().resolve().name
        names.append(re.sub(r"\.(tar|jsonl|json|arrow|csv|tsv)$", "", name))
    return _file_name("+".join(dict.fromkeys(names)))[:80].strip(".") or "source"


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.+-]+", "_", text)


def cache_folder(cache_dir: str | None, output_dir: str) -> Path:
    """Return the folder of the cache on this machine; for a cache on an object store, the folder that mirrors it."""
    address = cache_address(cache_dir, output_dir)
    if address is not None:
        return user_cache_folder("mirrors", short_hash(address))
    return Path(_cache_place(cache_dir, output_dir)).expanduser()


def cache_address(cache_dir: str | None, output_dir: str) -> str | None:
    """Return the address of a cache on an object store; None if the cache is a folder."""
    place = _cache_place(cache_dir, output_dir)
    return tidy_address(place) if is_address(place) else None


def sweeps_folder(output_dir: str) -> str:
    """Return the folder of sweeps: beside the datasets, or in the user's cache if those are on an object store."""
    return str(user_cache_folder("runs", "")) if is_address(output_dir) else f"{output_dir}/.runs"


def _cache_place(cache_dir: str | None, output_dir: str) -> str:
    return cache_dir or path_in(output_dir, ".cache")


def short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
