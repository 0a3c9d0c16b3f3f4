"""Make packs of LLaVA-OneVision-2 or LoongForge loadable where they lie: `python -m energon_pack.adopt DIR`.

Writes the missing files that Energon needs: `typed.yaml`, which names this package's sample class and loader, and if
needed the index of each shard, their counts and the split. It changes no file that Energon can read, so the other
tool's stack can still use its dataset.yaml.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from energon_pack.dataset.contents import parse
from energon_pack.dataset.energon import dataset_yamls
from energon_pack.dataset.folder import DatasetFolder
from energon_pack.dataset.manifest import TYPED, is_packed_here
from energon_pack.dataset.pack_files import packs_in
from energon_pack.errors import PackError
from energon_pack.plan.splits import SPLITS
from energon_pack.run.command import on_disk, parser, run
from energon_pack.run.console import say
from energon_pack.run.files import META_FOLDER, write_whole
from energon_pack.run.plain_data import NotPlain, yaml_value
from energon_pack.samples.flavors import PACKED
from energon_pack.samples.flavors.base import PackedFlavor
from energon_pack.sources.storage import open_file
from energon_pack.sources.tar import TarScan


def adopt(folder: Path) -> tuple[str, list[str]]:
    """Make packs of another tool loadable; return the name of the YAML to load them by, and the written files.

    Raises:
        PackError: no packs of a known form, packs of two flavours, or a damaged shard.
    """
    if not folder.is_dir():
        raise PackError(f"{folder}: no such folder")
    if is_packed_here(folder):
        raise PackError(f"{folder}: energon_pack packed it, it is loadable as it is")
    paths = [folder / name for name in DatasetFolder(folder).shards]
    found = {path: _scanned(path) for path in paths}
    names = {flavor.name for flavor, _ in found.values()}
    if len(names) != 1:
        raise PackError(f"{folder}: {'packs of several flavours' if names else 'no tar'}, where one flavour is loaded")
    meta = folder / META_FOLDER
    typed = _yaml(dataset_yamls(PACKED[names.pop()], "typed")["dataset.yaml"])
    places = [meta / "dataset.yaml", meta / TYPED]
    place = next((path for path in places if not path.exists() or path.read_bytes() == typed), None)
    if place is None:
        raise PackError(f"{places[-1]} is there, and is another: rename it")
    missing: dict[Path, bytes] = {}
    for path, (_, starts) in found.items():
        if not path.with_suffix(".tar.idx").exists():
            missing[path.with_suffix(".tar.idx")] = np.array(starts, "<u8").tobytes()
    if not any((meta / info).exists() for info in (".info.json", ".info.yaml")):
        counts = {path.name: len(starts) - 1 for path, (_, starts) in found.items()}
        missing[meta / ".info.json"] = json.dumps({"shard_counts": counts}, indent=2).encode()
    if not _has_split(meta):
        parts: dict[str, list[str]] = {split: [] for split in SPLITS} | {"train": [path.name for path in paths]}
        missing[meta / "split.yaml"] = _yaml({"split_parts": parts, "exclude": []})
    if not place.exists():
        missing[place] = typed
    meta.mkdir(exist_ok=True)
    for path, data in missing.items():
        write_whole(path, data)
    return place.name, [path.relative_to(folder).as_posix() for path in missing]


def _scanned(path: Path) -> tuple[PackedFlavor, list[int]]:
    """Return the flavour of a shard's first pack; and where each pack begins and the last one ends.

    Raises:
        PackError: the shard is damaged, or its first pack has no known form.
    """
    with open_file(path) as file:
        scan = TarScan(file)
        packs = list(packs_in(scan))
        if scan.damage or not packs:
            what = f"{scan.damage[0].what} at byte {scan.damage[0].offset}" if scan.damage else "it holds no pack"
            raise PackError(f"{path}: {what}")
        place = next((part for part in packs[0].parts if part.name == "json"), None)
        pack, defects = parse(packs[0], None if place is None else file.read(place.offset, place.size), None)
    if not pack.flavor.whose:
        raise PackError(f"{path}: {packs[0].key}: {defects[0]}: no pack that LLaVA-OneVision-2 or LoongForge writes")
    return pack.flavor, [pack.start for pack in packs] + [packs[-1].end]


def _has_split(meta: Path) -> bool:
    """Say whether there is a split that Energon reads; LLaVA-OneVision-2's tools wrote one that it can't read."""
    if (meta / "split.json").exists():
        return True
    try:
        value = yaml_value((meta / "split.yaml").read_bytes())
    except (OSError, NotPlain):
        return False
    return isinstance(value, Mapping) and isinstance(value.get("split_parts"), Mapping)


def _yaml(value: Any) -> bytes:
    return yaml.safe_dump(value, sort_keys=False, width=1000).encode()


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    tool = parser(
        "adopt",
        "DIR",
        "Make packs of LLaVA-OneVision-2 or LoongForge loadable as they lie; nothing of theirs is changed.",
        examples=("/data/their_packs",),
    )
    tool.add_argument("dataset", metavar="DIR", help="folder of packs that another tool wrote")
    given = tool.parse_args(arguments)
    name, written = adopt(on_disk(given.dataset))
    say(f"written: {', '.join(written) or 'nothing, all is there'}")
    config = "" if name == "dataset.yaml" else f', dataset_config="{name}"'
    say(f'load it with megatron.energon.get_train_dataset("{given.dataset}"{config}, ...)')
    if config:
        say(f"energon_pack.loading.train_arguments names {name} by itself")
    return 0


if __name__ == "__main__":
    run("adopt", main)
