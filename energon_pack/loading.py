"""From the parts of an Energon sample to a flavour: the registered sample loader, and cookers for crude datasets.

`dataset.yaml` names `make_sample_loader` and `make_part_filter`, so nothing but this package has to be importable
where the data are read. Both ways give the same samples. Parts may come as bytes (the default here) or decoded by
whatever decoder a task encoder sets.
"""

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import numpy as np

from energon_pack.manifest import FLAVORS, read_manifest
from energon_pack.media import open_image, probe
from energon_pack.record import ReadSettings, Record, caption_record, media_parts, parse_record
from energon_pack.sample import Part, place_media
from energon_pack.templates import ModelSettings, Template
from energon_pack.templates import load_template as load_model_template

Parts = Mapping[str, Any]


# ------------------------------------------------------------------------------------------- named by dataset.yaml


def make_sample_loader(flavor: str = "packed_multi_mix_qa") -> Callable[[Parts], dict[str, Any]]:
    """The sample loader of a flavour: from the parts of a sample to the fields of its class.

    Raises:
        ValueError: an unknown flavour.
    """
    if flavor not in LOADERS:
        raise ValueError(f"no sample loader for flavor {flavor!r}; there are: {', '.join(LOADERS)}")
    return LOADERS[flavor]


def make_part_filter() -> Callable[[str], bool]:
    """All parts of a sample are read."""
    return lambda part: True


# ------------------------------------------------------------------------------------------------- sample loaders


def load_packed_multi_mix_qa(parts: Parts) -> dict[str, Any]:
    """The fields of a `PackedMultiMixQASample`.

    Raises:
        KeyError: a medium of the pack is missing; names the pack and the part.
    """
    pack = _json(parts["json"])
    members, meta = pack["messages"], pack["_meta"]
    return {
        "messages": [member["messages"] for member in members],
        "images": [_media(parts, names, "i") for names in pack["media_files"]],
        "videos": [_media(parts, names, "v") for names in pack["media_files"]],
        "tools": [member.get("tools") for member in members],
        "sample_ids": meta["sample_ids"],
        "token_lens": meta["token_lens"],
        "num_supervised": meta["num_supervised"],
        "media_type": pack["media_type"],
        "fingerprint": meta["fingerprint"],
    }


def load_packed_captioning(parts: Parts) -> dict[str, Any]:
    """The fields of a `PackedCaptioningSample`; reads packs of LLaVA-OneVision-2's own tools too.

    Raises:
        KeyError: an image of the pack is missing; names the pack and the part.
    """
    pack = _json(parts["json"])
    members = range(len(pack["images"]))
    positions = [
        [_patch_positions(parts.get(f"img{s}_{i}.npy")) for i in range(len(pack["images"][s]))] for s in members
    ]
    meta = pack.get("_meta", {})
    return {
        "images": [[_open(parts, f"img{s}_{i}.jpg") for i in range(len(pack["images"][s]))] for s in members],
        "prompts": [_as_list(turns) for turns in pack["prompts"]],
        "captions": [_as_list(turns) for turns in pack["captions"]],
        "patch_positions": positions if any(p is not None for row in positions for p in row) else None,
        "fps": pack.get("fps"),
        "timestamp_decimal": pack.get("timestamp_decimal"),
        **{key: meta.get(key) for key in ("sample_ids", "token_lens", "num_supervised", "fingerprint")},
    }


def load_multi_mix_qa(parts: Parts, settings: ReadSettings = ReadSettings()) -> dict[str, Any]:  # noqa: B008 (frozen)
    """The fields of a `MultiMixQASample` from an unpacked source sample, read as packing reads it.

    Raises:
        Skip: where packing would have skipped it.
    """
    names = [name for name in parts if not name.startswith("__")]
    record = _record(parts, names, settings)
    chosen = media_parts(record, str(parts.get("__key__", "")), [Part(name, 0, 0) for name in names])
    kinds = [_kind(parts[part.name]) for part in chosen]
    messages, order, _ = place_media(record.messages, kinds)
    media = {kind: [_open(parts, chosen[i].name) for i in order if kinds[i] == kind] for kind in ("image", "video")}
    return {
        "messages": messages,
        "image": media["image"] or None,
        "video": media["video"] or None,
        "tools": record.tools,
    }


LOADERS: dict[str, Callable[[Parts], dict[str, Any]]] = {
    "packed_multi_mix_qa": load_packed_multi_mix_qa,
    "packed_captioning": load_packed_captioning,
    "multi_mix_qa": load_multi_mix_qa,
}


# ------------------------------------------------------------------------------------------------------- cookers


def cookers() -> list[Any]:
    """Cookers of all flavours, for the `cookers` of a task encoder that reads crude datasets (`crude.yaml`)."""
    from megatron.energon import Cooker

    return [
        Cooker(_cook(flavor, sample_class), has_subflavors={"sample_type": sample_type})
        for flavor, (sample_class, sample_type) in FLAVORS.items()
    ]


def _cook(flavor: str, sample_class: str) -> Callable[[dict[str, Any]], Any]:
    from megatron.energon import basic_sample_keys, stateless

    from energon_pack import flavors

    make = getattr(flavors, sample_class)

    def cook(sample: dict[str, Any]) -> Any:
        return make(**basic_sample_keys(sample), **LOADERS[flavor](sample))

    return cast(Callable[[dict[str, Any]], Any], stateless(cook))


# --------------------------------------------------------------------------------------- the template of a dataset


def load_template(dataset: str | Path, processor: str | None = None) -> Template:
    """The template a dataset was packed with: `load_template(path).encode(sample)` gives the measured lengths.

    Args:
        dataset: folder of a packed dataset.
        processor: folder or hub id of the model's processor; by default the model's published one.

    Raises:
        ValueError: the processor is not what the lengths were measured with; says what differs.
    """
    manifest = read_manifest(Path(dataset))
    model = manifest["content"]["model"]
    names = {field.name for field in fields(ModelSettings)} - {"processor"}
    settings = ModelSettings(processor=processor or model["hub_id"], **{name: model[name] for name in names})
    template = load_model_template(settings)
    if template.fingerprint != manifest["fingerprint"]:
        differ = [name for name, value in manifest["fingerprints"].items() if template.fingerprints[name] != value]
        raise ValueError(
            f"{dataset} was packed with another {' and another '.join(differ)} than that of"
            f" {settings.processor}: lengths would differ. Train with the processor it was packed with, or pack again"
        )
    return template


# ---------------------------------------------------------------------------------------------------- single parts


def _json(part: Any) -> Any:
    return json.loads(part) if isinstance(part, (bytes, str)) else part


def _media(parts: Parts, names: list[str], kind: str) -> list[Any]:
    """The media of one member whose name says they are of a kind: `s003.i00.jpg` is an image."""
    return [_open(parts, name) for name in names if name.split(".")[1][0] == kind]


def _open(parts: Parts, name: str) -> Any:
    """A medium: an image from its bytes; a video's bytes, and what a decoder made of a part, as they are."""
    if name not in parts:
        raise KeyError(f"{parts.get('__key__')} has no part {name}")
    value = parts[name]
    return open_image(value) if isinstance(value, bytes) and _kind(value) == "image" else value


def _kind(value: Any) -> str:
    return probe(io.BytesIO(value)).kind if isinstance(value, bytes) else "image"


def _record(parts: Parts, names: list[str], settings: ReadSettings) -> Record:
    if "json" in parts:
        return parse_record(_json(parts["json"]), settings)
    text = parts["txt"]
    return caption_record(text if isinstance(text, str) else text.decode(), settings)


def _patch_positions(value: Any) -> Any:
    return np.load(io.BytesIO(value), allow_pickle=False) if isinstance(value, bytes) else value


def _as_list(turns: Any) -> list[str]:
    return [turns] if isinstance(turns, str) else turns
