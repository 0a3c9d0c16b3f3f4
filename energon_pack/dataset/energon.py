"""Write the files that Energon and training read beside the shards: `.nv-meta`."""

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from energon_pack.dataset.manifest import MANIFEST, TYPED_YAML
from energon_pack.dataset.shards import WrittenShard
from energon_pack.plan.items import Lengths
from energon_pack.plan.packs import PackPlan, count_packs_by_mixture_turn, count_packs_by_split
from energon_pack.plan.splits import SPLITS
from energon_pack.run.files import META_FOLDER, write_atomically
from energon_pack.samples.flavors.base import Flavor, PackedFlavor
from energon_pack.samples.pack_tokens import PACK_FORMAT
from energon_pack.samples.settings import PreferenceTake
from energon_pack.sources.storage import open_file
from energon_pack.sources.tar import TarScan
from energon_pack.steps.cost import CostModel
from energon_pack.templates.identity import TemplateIdentity

#: the Energon version with this layout; readers only show it
_ENERGON_VERSION = "7.4.1"

SAMPLE_LOADER = "sample_loader.py"


def write_metadata(
    folder: Path,
    shards: Sequence[WrittenShard],
    flavor: PackedFlavor,
    dataset_yaml: str,
    sqlite: bool,
    manifest: Mapping[str, Any],
    sample_type: str | None = None,
) -> None:
    """Write the files of `.nv-meta` that depend on the finished shards: Energon's own, and energon_pack.json.

    Args:
        dataset_yaml: how dataset.yaml has packs read: `typed`, as a sample class, or `crude`, as dicts; a second YAML
            has the other form.
        sample_type: `module:Class` of another stack, which sample_loader.py fills; None: the class of this package.
    """
    meta = folder / META_FOLDER
    info = write_energon_files(folder, shards, flavor, dataset_yaml, sample_type)
    if sample_type is not None:
        write_atomically(meta / SAMPLE_LOADER, sample_loader_py(flavor))
    content = json.dumps({"format": PACK_FORMAT, **manifest}, indent=2, sort_keys=True)
    write_atomically(meta / MANIFEST, content.encode())
    if sqlite:
        _write_sqlite(folder, shards)
        derived = uuid.uuid5(uuid.NAMESPACE_OID, f"{content}{json.dumps(info)}")
        write_atomically(meta / "index.uuid", str(derived).encode())


def manifest_of(
    lengths: Lengths,
    plan: PackPlan,
    template: TemplateIdentity,
    cost: CostModel,
    content: Mapping[str, Mapping[str, Any]],
    mixture: Sequence[Mapping[str, Any]] | None,
) -> dict[str, Any]:
    """Return energon_pack.json, but its format number. `content`: settings; `mixture`: figures of each entry."""
    return {
        "flavor": lengths.flavor.name,
        "fingerprint": template.fingerprint,
        "fingerprints": template.fingerprints,
        **manifest_settings(content),
        "num_packs": plan.num_packs,
        "num_samples": len(plan.items),
        "num_tokens": int(lengths.items.lens[plan.items].sum()),
        "splits": count_packs_by_split(lengths.items, plan),
        **({"entries": [entry["name"] for entry in mixture]} if mixture and len(mixture) > 1 else {}),
        **(
            {} if lengths.items.turn is None else {"turns": len(count_packs_by_mixture_turn(lengths.items, plan) or ())}
        ),
        "cost": cost.to_json(),
    }


def manifest_settings(content: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the keys of energon_pack.json that follow from the settings alone; encoding packs needs no others."""
    packing = ("layout", "max_token_len", "pad_to_multiple_of", "topology")
    return {
        **{name: content["packing"][name] for name in packing},
        "mask": content["model"]["mask"],
        **({"pairs": True} if content["source"].get("take") == PreferenceTake.both else {}),
        "content": content,
    }


def write_energon_files(
    folder: Path, shards: Sequence[WrittenShard], flavor: Flavor, dataset_yaml: str, sample_type: str | None = None
) -> dict[str, Any]:
    """Write the files of `.nv-meta` that Energon reads (YAMLs and .info.json); return the content of .info.json."""
    meta = folder / META_FOLDER
    meta.mkdir(exist_ok=True)
    for name, value in dataset_yamls(flavor, dataset_yaml, sample_type).items():
        _write_yaml(meta / name, value)

    # `energon lint` asks for train, val and test; it accepts an empty split, and fails on a missing one.
    parts = {split: [shard.name for shard in shards if shard.split == split] for split in SPLITS}
    _write_yaml(meta / "split.yaml", {"split_parts": parts, "exclude": []})
    counts = {shard.name: shard.num_packs for shard in shards}
    info = {"energon_version": _ENERGON_VERSION, "shard_counts": counts}
    write_atomically(meta / ".info.json", json.dumps(info, indent=2).encode())
    _write_yaml(meta / ".info.yaml", info)  # for readers before Energon 7
    return info


def sample_loader_py(flavor: PackedFlavor) -> bytes:
    """Return the source code of `.nv-meta/sample_loader.py`, which fills another stack's sample class."""
    return (Path(__file__).parent / "sample_loaders" / f"{flavor.name}.py").read_bytes()


def dataset_yamls(flavor: Flavor, dataset_yaml: str, sample_type: str | None = None) -> dict[str, dict[str, Any]]:
    """Return name → content of two YAMLs that tell Energon how to read packs: dataset.yaml, and one of the other form.

    `dataset_yaml`: the form of dataset.yaml: `typed` (as a sample class) or `crude` (as dicts).
    """
    typed: dict[str, Any] = {
        "sample_type": {"__module__": "energon_pack.flavors", "__class__": flavor.sample_class},
        "sample_loader": {
            "__module__": "energon_pack.loading",
            "__function__": "make_sample_loader",
            "flavor": flavor.name,
        },
        "part_filter": {"__module__": "energon_pack.loading", "__function__": "make_part_filter"},
        "decoder": None,  # the sample loader decodes images itself
        "subflavors": {"sample_type": flavor.subflavor},
    }
    if sample_type is not None:
        module, _, name = sample_type.partition(":")
        typed = {
            "sample_type": {"__module__": module, "__class__": name},
            "sample_loader": f"{SAMPLE_LOADER}:{flavor.loader}",
            "part_filter": f"{SAMPLE_LOADER}:part_filter",
            "subflavors": {"sample_type": flavor.subflavor},
        }
    crude = {
        "__module__": "megatron.energon",
        "__class__": "CrudeWebdataset",
        "subflavors": {"sample_type": flavor.subflavor},
    }
    if dataset_yaml == "typed":
        return {"dataset.yaml": typed, "crude.yaml": crude}
    return {"dataset.yaml": crude, TYPED_YAML: typed}


def changed_keys(content: Any, written: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys whose values differ from those that were written, but for added subflavors and `source_root`."""
    present = content if isinstance(content, dict) else {}
    for key in sorted(written):
        value = present.get(key)
        if isinstance(value, dict):
            added = value.keys() - written[key].keys() if key == "subflavors" else {"source_root"}
            value = {name: item for name, item in value.items() if name not in added}
        if key not in present or value != written[key]:
            yield key


def _write_sqlite(folder: Path, shards: Sequence[WrittenShard]) -> None:
    """Write Energon's index of all samples and parts with Energon's writer, for joins and random access."""
    from megatron.energon.epathlib import EPath
    from megatron.energon.flavors.webdataset.indexing import SqliteIndexWriter
    from megatron.energon.flavors.webdataset.prepare import IndexSample, IndexSamplePart

    with SqliteIndexWriter(EPath(folder / META_FOLDER / "index.sqlite")) as writer:
        for number, shard in enumerate(shards):
            starts = np.fromfile(folder / f"{shard.name}.idx", "<u8").tolist()
            samples: list[Any] = []
            parts: list[Any] = []
            with open_file(folder / shard.name) as tar:
                for name, offset, size in TarScan(tar):
                    key, _, part = name.partition(".")
                    if not samples or samples[-1].sample_key != key:
                        index = len(samples)
                        place = {"byte_offset": starts[index], "byte_size": starts[index + 1] - starts[index]}
                        samples.append(IndexSample(tar_file_id=number, sample_key=key, sample_index=index, **place))
                    parts.append(
                        IndexSamplePart(
                            tar_file_id=number,
                            sample_index=samples[-1].sample_index,
                            part_name=part,
                            content_byte_offset=offset,
                            content_byte_size=size,
                        )
                    )
            writer.append_samples(samples)
            writer.append_parts(parts)


def _write_yaml(path: Path, value: Any) -> None:
    write_atomically(path, yaml.safe_dump(value, sort_keys=False, width=1000).encode())
