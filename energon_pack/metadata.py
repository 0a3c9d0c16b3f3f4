"""What Energon and training read beside the shards: `.nv-meta`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from energon_pack.files import write_whole
from energon_pack.manifest import FLAVORS, FORMAT, MANIFEST, META_FOLDER
from energon_pack.shards import WrittenShard

#: The Energon version whose layout this is; readers only show it.
_ENERGON_VERSION = "7.4.1"


def write_metadata(
    folder: Path, shards: Sequence[WrittenShard], flavor: str, dataset_yaml: str, manifest: Mapping[str, Any]
) -> None:
    """Write `.nv-meta` for the shards of a finished folder.

    Args:
        dataset_yaml: `typed` or `crude`: which of the two `dataset.yaml` is; the other stands beside it.
        manifest: the content of energon_pack.json: what training checks.
    """
    meta = folder / META_FOLDER
    meta.mkdir(exist_ok=True)
    sample_class, sample_type = FLAVORS[flavor]
    typed = {
        "sample_type": {"__module__": "energon_pack.flavors", "__class__": sample_class},
        "sample_loader": {
            "__module__": "energon_pack.loading",
            "__function__": "make_sample_loader",
            "flavor": flavor,
        },
        "part_filter": {"__module__": "energon_pack.loading", "__function__": "make_part_filter"},
        "decoder": None,  # the loader decodes images itself
        "subflavors": {"sample_type": sample_type},
    }
    crude = {
        "__module__": "megatron.energon",
        "__class__": "CrudeWebdataset",
        "subflavors": {"sample_type": sample_type},
    }
    _write_yaml(meta / "dataset.yaml", typed if dataset_yaml == "typed" else crude)
    if dataset_yaml == "typed":
        _write_yaml(meta / "crude.yaml", crude)
    else:
        _write_yaml(meta / "typed.yaml", typed)

    # `energon lint` asks for train, val and test; it passes over an empty one and fails on a missing one.
    parts = {"train": [shard.name for shard in shards], "val": [], "test": []}
    _write_yaml(meta / "split.yaml", {"split_parts": parts, "exclude": []})
    counts = {shard.name: shard.num_packs for shard in shards}
    info = {"energon_version": _ENERGON_VERSION, "shard_counts": counts}
    write_whole(meta / ".info.json", json.dumps(info, indent=2).encode())
    _write_yaml(meta / ".info.yaml", info)  # for readers before Energon 7
    write_whole(meta / MANIFEST, json.dumps({"format": FORMAT, **manifest}, indent=2, sort_keys=True).encode())


def _write_yaml(path: Path, value: Any) -> None:
    write_whole(path, yaml.safe_dump(value, sort_keys=False, width=1000).encode())
