"""Blend several packed datasets: `python -m energon_pack.metadataset OUT.yaml DIR[=WEIGHT] …`.

Writes Energon's Metadataset (v2), and prints facts about each dataset that help before training on the blend.
"""

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from energon_pack.dataset.agreement import refuse_incompatible_datasets
from energon_pack.dataset.folder import DatasetFolder
from energon_pack.dataset.manifest import MANIFEST
from energon_pack.errors import PackError
from energon_pack.plan.splits import SPLITS
from energon_pack.report.pages.html import Rows, print_table
from energon_pack.run import stores
from energon_pack.run.address import find_profile_and_key, is_address
from energon_pack.run.command import make_tool_parser, positive_int, run_tool
from energon_pack.run.console import say
from energon_pack.run.files import META_FOLDER, write_atomically
from energon_pack.run.stores.requests import StoreError
from energon_pack.run.untrusted_input import parse_yaml
from energon_pack.sources.storage import absolute, folder_of, is_file, real_path

_COUNT_NAMES = ("packs", "samples", "tokens")
_YAML_TEXT_TAG = "tag:yaml.org,2002:str"


@dataclass(frozen=True)
class BlendEntry:
    """A packed dataset of a blend, with its manifest, counts and weight."""

    folder: DatasetFolder
    manifest: dict[str, Any]
    counts: dict[str, dict[str, int]]  # packs, samples and tokens by split
    given_weight: float | None  # the weight on the command line; None: no weight

    def weight(self, split: str, weight_by: str) -> float:
        """Return the dataset's weight in the blend of a split; 0 if it has no packs there.

        `weight_by`: the count that is the weight if none is given: packs, samples or tokens.
        """
        if split not in self.counts:
            return 0.0
        return float(self.counts[split][weight_by]) if self.given_weight is None else self.given_weight


def read_blend_entry(dir_and_weight: str) -> BlendEntry:
    """Parse `DIR` or `DIR=WEIGHT`, and read that dataset's metadata; DIR is a folder or an address."""
    path, equals, weight_text = dir_and_weight.rpartition("=")
    if not equals or DatasetFolder(dir_and_weight).has_files:
        path, weight_text = dir_and_weight, ""
    folder = DatasetFolder(real_path(absolute(os.path.expanduser(path))))
    if is_file(folder.path):
        raise PackError(f"{path} is a file: name the packed datasets themselves, their folders")
    try:
        manifest = folder.read_json_object(f"{META_FOLDER}/{MANIFEST}")
        sides = 2 if manifest.get("pairs") else 1  # a pair is one sample
        counts = {split: {**of, "samples": of["samples"] // sides} for split, of in manifest["splits"].items()}
    except StoreError:
        raise
    except (OSError, ValueError, KeyError):
        raise PackError(f"{path} is not a dataset that energon_pack packed") from None
    try:
        weight = float(weight_text) if weight_text else None
    except ValueError:
        raise PackError(f"{dir_and_weight}: the weight {weight_text!r} is no number") from None
    if weight is not None and not 0 < weight < float("inf"):
        raise PackError(f"{dir_and_weight}: the weight {weight:g} is not more than 0")
    return BlendEntry(folder, manifest, counts, weight)


def parse_subflavor(key_and_value: str) -> tuple[str, Any]:
    """Parse `KEY=VALUE` of the command line; return the key and the value.

    true, false, null and numbers mean the same as in JSON and YAML 1.2. Quotes make text of them. Any other value is
    text.
    """
    key, equals, value = key_and_value.partition("=")
    if not key or not equals:
        raise PackError(f"--subflavors {key_and_value}: KEY=VALUE each")
    try:
        read = json.loads(value.lower() if value.lower() in ("true", "false", "null") else value)
    except ValueError:
        return key, value
    is_finite = not isinstance(read, float) or math.isfinite(read)
    return key, read if is_finite and not isinstance(read, (list, dict)) else value


def metadataset_of(
    entries: list[BlendEntry], out: str, weight_by: str, subflavors: dict[str, Any], config: str | None, relative: bool
) -> Any:
    """Return a Metadataset that blends these datasets, as a value for YAML.

    Args:
        out: the path of the Metadataset's file.
        weight_by: the count that is the weight of a dataset without one: packs, samples or tokens.
        subflavors: Energon's subflavors for all datasets.
        config: the file in each dataset's `.nv-meta` that Energon reads; None: dataset.yaml.
        relative: write paths relative to the folder of `out`.
    """
    refuse_incompatible(entries, weight_by)
    for entry in entries:
        if config is not None and not entry.folder.has(f"{META_FOLDER}/{config}"):
            raise PackError(f"--config {config}: {entry.folder}/{META_FOLDER} has none")
    if is_address(out) and (here := next((e.folder for e in entries if not e.folder.is_stored), None)):
        raise PackError(f"{out} is on an object store, and {here} is not: a blend there is of datasets on stores alone")
    start = folder_of(real_path(absolute(out)))
    splits = {}
    for part in SPLITS:
        references = [
            {
                "weight": entry.weight(part, weight_by),
                "path": relative_path(entry.folder, start) if relative else entry.folder.energon_path,
                "split_part": part,
                **({"dataset_config": config} if config else {}),
                **({"subflavors": subflavors} if subflavors else {}),
            }
            for entry in entries
            if part in entry.counts
        ]
        if references:
            splits[part] = {"blend": references}
    return {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": splits}


def refuse_incompatible(entries: list[BlendEntry], weight_by: str) -> None:
    """Raise PackError if one training can't read all packs in one way, or if only some datasets have a weight.

    `weight_by`: the count that replaces a missing weight, for the message: packs, samples or tokens.
    """
    without = [entry.folder.path for entry in entries if entry.given_weight is None]
    if 0 < len(without) < len(entries):
        raise PackError(
            f"{', '.join(without)}: no weight, beside others that have one: a number of {weight_by} and a given weight"
            " do not compare; give DIR=WEIGHT for all or for none"
        )
    refuse_incompatible_datasets({entry.folder.path: entry.manifest for entry in entries}, ("flavor",))


def relative_path(folder: DatasetFolder, start: str) -> str:
    """Return the path of a dataset relative to `start`; raises PackError if both are on different stores."""
    (store, path), (other, beside) = map(_store_and_path, (folder.path, start))
    if store != other:
        raise PackError(f"--relative: from {start} there is no relative path to {folder}: leave it out")
    return Path(os.path.relpath(path, beside)).as_posix()


def _store_and_path(path: str) -> tuple[str, str]:
    """Split an address into its store and its absolute path there; the store of a local path is empty."""
    profile, key = find_profile_and_key(path) if is_address(path) else ("", path)
    return profile, f"/{key}"


def energon_yaml(value: dict[str, Any]) -> bytes:
    """Return a value as YAML that Energon reads correctly: without aliases, and with quoted strings."""
    return yaml.dump(value, Dumper=_EnergonDumper, sort_keys=False, width=1 << 20, allow_unicode=True).encode()


def _write_file(out: str, data: bytes) -> None:
    if is_address(out):
        stores.put(out, data)
        return
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    write_atomically(Path(out), data)


class _EnergonDumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_mapping(self, tag: str, mapping: Any, flow_style: bool | None = None) -> yaml.MappingNode:
        node = super().represent_mapping(tag, mapping, flow_style)
        for _, value in node.value:
            if value.tag == _YAML_TEXT_TAG:
                value.style = '"'
        return node


def print_entries(entries: list[BlendEntry], weight_by: str, batch_size: int, num_steps: int | None) -> None:
    """Print a table: for each dataset and split its size, weight, steps in an epoch, and epochs in `num_steps`."""
    columns = ["dataset", "split", "shards", "packs", "samples", "tokens", "max len", "fill", "weight", "share"]
    columns += ["steps an epoch", *(["epochs"] if num_steps else [])]
    rows = []
    for split in SPLITS:
        in_all = sum(entry.weight(split, weight_by) for entry in entries)
        rows += [
            _row_cells(entry, split, entry.weight(split, weight_by), in_all, batch_size, num_steps)
            for entry in entries
            if split in entry.counts
        ]
    print_table(Rows(columns, rows, num_words=2))
    if len({entry.manifest["max_token_len"] for entry in entries}) > 1:
        say("packs differ in max_token_len: training needs room for the longest")


def _row_cells(
    entry: BlendEntry, split: str, weight: float, in_all: float, batch_size: int, num_steps: int | None
) -> list[str]:
    counts, max_token_len = entry.counts[split], entry.manifest["max_token_len"]
    packs, samples, tokens = (counts[name] for name in _COUNT_NAMES)
    share = weight / in_all
    steps = packs / share / batch_size
    numbers = len(_shard_names(entry, split)), packs, samples, tokens, max_token_len
    fill = tokens / (packs * max_token_len)
    cells = [f"{fill:.2%}", f"{weight:,g}", f"{share:.2%}", f"{steps:,.1f}"]
    return [entry.folder.name, split, *(f"{n:,}" for n in numbers), *cells] + (
        [f"{num_steps / steps:,.2f}"] if num_steps else []
    )


def _shard_names(entry: BlendEntry, split: str) -> list[str]:
    parts = parse_yaml(entry.folder.read(f"{META_FOLDER}/split.yaml"))["split_parts"]
    shards: list[str] = parts[split]
    return shards


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    tool = make_tool_parser(
        "metadataset",
        "OUT.yaml DIR[=WEIGHT]...",
        "Write an Energon Metadataset that blends packed datasets, and say how often each comes in training.",
        examples=(
            "blend.yaml packed/demo-qwen2_5_vl-neat-8192",
            "blend.yaml packed/text=1 packed/image=0.5 --batch-size 64 --steps 10000",
            "blend.yaml packed/text packed/image --weight packs",
        ),
    )
    tool.add_argument("out", metavar="OUT.yaml", help="the Metadataset to write: a file, or an address")
    tool.add_argument("datasets", nargs="+", metavar="DIR[=WEIGHT]", help="packed datasets: folders, or addresses")
    weights = tool.add_argument_group("how often each comes")
    weights.add_argument(
        "--weight",
        choices=_COUNT_NAMES,
        default="samples",
        help="what a dataset without WEIGHT weighs (samples); one pack is one draw, so equal epochs want packs",
    )
    weights.add_argument("--batch-size", type=positive_int, default=1, metavar="N", help="packs a step, of all ranks")
    weights.add_argument(
        "--steps", type=positive_int, metavar="N", help="of the training: says how often each dataset comes"
    )
    written = tool.add_argument_group("what is written")
    written.add_argument(
        "--subflavors", nargs="+", default=[], metavar="KEY=VALUE", help="of all datasets; true, 3 and 0.5 are no text"
    )
    written.add_argument("--config", help="which dataset config to use: crude.yaml, typed.yaml (dataset.yaml)")
    written.add_argument("--relative", action="store_true", help="paths relative to OUT.yaml's folder")
    written.add_argument("--overwrite", action="store_true", help="replace OUT.yaml")
    options = tool.parse_args(arguments)
    out: str = options.out
    if not out.endswith(".yaml"):
        raise PackError(f"{out}: Energon knows a Metadataset by the name: it has to end in .yaml")
    if is_file(out) and not options.overwrite:
        raise PackError(f"{out} exists; --overwrite replaces it")
    entries = [read_blend_entry(text) for text in options.datasets]
    subflavors = dict(map(parse_subflavor, options.subflavors))
    value = metadataset_of(entries, out, options.weight, subflavors, options.config, options.relative)
    _write_file(out, energon_yaml(value))
    print_entries(entries, options.weight, options.batch_size, options.steps)
    say(f"written: {out}")
    return 0


if __name__ == "__main__":
    run_tool("metadataset", main)
