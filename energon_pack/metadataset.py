"""Several packed datasets as one: `python -m energon_pack.metadataset OUT.yaml DIR[=WEIGHT] …`.

Writes Energon's Metadataset (v2), and says of each dataset what one wants to know before training on the blend.
"""

import argparse
import json
import os
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.table import Table

from energon_pack import __version__
from energon_pack.errors import PackError
from energon_pack.files import write_whole
from energon_pack.manifest import META_FOLDER, read_manifest
from energon_pack.report import console, say

_PARTS = ("train", "val", "test")
_COUNTS = ("samples", "packs", "tokens")
#: What packs of one training job must have in common.
_ALIKE = ("fingerprint", "flavor")


@dataclass(frozen=True)
class Entry:
    """A packed dataset of the blend."""

    folder: Path
    weight: float
    manifest: dict[str, Any]
    shards: dict[str, list[str]]  # by split, those that are not empty


def read_entry(text: str, weight_by: str = "samples") -> Entry:
    """A `DIR` or `DIR=WEIGHT` of the command line.

    Raises:
        PackError: no packed dataset, or no weight that makes sense.
    """
    path, equals, given = text.rpartition("=")
    if not equals or Path(text).is_dir():
        path, given = text, ""
    folder = Path(path).expanduser().resolve()
    try:
        manifest = read_manifest(folder)
        splits = yaml.safe_load((folder / META_FOLDER / "split.yaml").read_text())["split_parts"]
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        raise PackError(f"{path} is not a dataset that energon_pack packed") from None
    try:
        weight = float(given) if given else float(manifest[f"num_{weight_by}"])
    except ValueError:
        raise PackError(f"{text}: the weight {given!r} is no number") from None
    if not 0 < weight < float("inf"):
        raise PackError(f"{text}: the weight {weight:g} is not more than 0")
    return Entry(folder, weight, manifest, {name: shards for name, shards in splits.items() if shards})


def blend(entries: list[Entry], out: Path, subflavors: dict[str, str], config: str | None, relative: bool) -> Any:
    """The Metadataset of these datasets, as YAML has it.

    Args:
        config: which of a dataset's YAML files to use; None: dataset.yaml.
        relative: name folders relative to that of `out`.

    Raises:
        PackError: packs that no training job takes together, or a `config` that one of them has not.
    """
    first = entries[0]
    for entry in entries:
        for name in _ALIKE:
            if entry.manifest[name] != first.manifest[name]:
                raise PackError(
                    f"{entry.folder} has the {name} {entry.manifest[name]}, {first.folder} {first.manifest[name]}:"
                    " packs of one blend are for one model and of one flavor"
                )
        if config is not None and not (entry.folder / META_FOLDER / config).is_file():
            raise PackError(f"--config {config}: {entry.folder}/{META_FOLDER} has none")
    start = out.resolve().parent
    splits = {}
    for part in _PARTS:
        references = [
            {
                "weight": entry.weight,
                "path": Path(os.path.relpath(entry.folder, start)).as_posix() if relative else str(entry.folder),
                "split_part": part,
                **({"dataset_config": config} if config else {}),
                **({"subflavors": subflavors} if subflavors else {}),
            }
            for entry in entries
            if part in entry.shards
        ]
        if references:
            splits[part] = {"blend": references}
    return {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": splits}


def print_entries(entries: list[Entry]) -> None:
    """Shards, packs, samples, fill, weight and the keys of the JSON of each dataset."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("dataset")
    for name in ("shards", "packs", "samples", "tokens", "max len", "fill", "weight", "share"):
        table.add_column(name, justify="right")
    in_all = sum(entry.weight for entry in entries)
    for entry in entries:
        num_shards = sum(map(len, entry.shards.values()))
        packs, samples, tokens, length = (
            entry.manifest[name] for name in ("num_packs", "num_samples", "num_tokens", "max_token_len")
        )
        fill = tokens / (packs * length)
        numbers = num_shards, packs, samples, tokens, length
        cells = [*(f"{n:,}" for n in numbers), f"{fill:.2%}", f"{entry.weight:,g}", f"{entry.weight / in_all:.2%}"]
        table.add_row(entry.folder.name, *cells)
    console().print(table)
    for entry in entries:
        say(f"{entry.folder.name}: JSON with {', '.join(_json_keys(entry))}")
    if len({entry.manifest["max_token_len"] for entry in entries}) > 1:
        say("packs differ in max_token_len: training needs room for the longest")


def _json_keys(entry: Entry) -> list[str]:
    """Keys of the first pack's JSON."""
    shard = next(shard for shards in entry.shards.values() for shard in shards)
    with tarfile.open(entry.folder / shard) as tar:
        value: dict[str, Any] = json.load(tar.extractfile(next(iter(tar))))  # type: ignore[arg-type]
    return sorted(value)


def main(arguments: list[str] | None = None) -> int:
    """The command line; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m energon_pack.metadataset", description=__doc__.partition("\n")[0])
    parser.add_argument("out", metavar="OUT.yaml", help="the Metadataset to write")
    parser.add_argument("datasets", nargs="+", metavar="DIR[=WEIGHT]", help="packed datasets")
    parser.add_argument(
        "--weight",
        choices=_COUNTS,
        default="samples",
        help="what a dataset without WEIGHT weighs (samples); one pack is one draw, so equal epochs want packs",
    )
    parser.add_argument("--subflavors", nargs="+", default=[], metavar="KEY=VALUE", help="of all datasets")
    parser.add_argument("--config", help="which dataset config to use: crude.yaml, typed.yaml (dataset.yaml)")
    parser.add_argument("--relative", action="store_true", help="paths relative to OUT.yaml's folder")
    parser.add_argument("--overwrite", action="store_true", help="replace OUT.yaml")
    parser.add_argument("--version", action="version", version=f"energon-pack {__version__}")
    given = parser.parse_args(arguments)
    out = Path(given.out)
    try:
        if out.exists() and not given.overwrite:
            raise PackError(f"{out} exists; --overwrite replaces it")
        pairs = [text.partition("=") for text in given.subflavors]
        if any(not equals for _, equals, _ in pairs):
            raise PackError(f"--subflavors {' '.join(given.subflavors)}: KEY=VALUE each")
        entries = [read_entry(text, given.weight) for text in given.datasets]
        value = blend(entries, out, {key: item for key, _, item in pairs}, given.config, given.relative)
        write_whole(out, yaml.safe_dump(value, sort_keys=False, width=1000).encode())
        print_entries(entries)
    except (PackError, OSError) as error:
        print(f"energon-pack: error: {' '.join(str(error).splitlines())}", file=sys.stderr)
        return 1
    print(f"written: {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
