"""Turn the parts of an Energon sample into a flavour: the registered sample loader, and cookers for crude datasets.

`dataset.yaml` names `make_sample_loader` and `make_part_filter`, so nothing but this package has to be importable
where the data are read. Both ways give the same samples. Parts may come as bytes (the default here) or decoded by
whatever decoder a task encoder sets.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from energon_pack.dataset.manifest import (
    has_manifest,
    is_metadataset,
    read_manifest,
)
from energon_pack.dataset.source_media import EnergonMediaReader
from energon_pack.errors import PackError
from energon_pack.samples.caption_beside import read_with_caption_beside, text_of_txt
from energon_pack.samples.conversation import match_placeholders_with_media, option_fields, options_of
from energon_pack.samples.documents import document_of
from energon_pack.samples.flavors import FLAVORS, UNPACKED_FLAVOR, load_pack, packed_flavor_or_default
from energon_pack.samples.flavors.base import Flavor, PackedFlavor
from energon_pack.samples.media.kinds import media_kind_by_extension
from energon_pack.samples.media.medium import Media
from energon_pack.samples.media_parts import extension_of, find_listed_parts, find_media_parts, refuse_other_kinds
from energon_pack.samples.member import media_keyword_arguments
from energon_pack.samples.raw_record import parse_sample_json
from energon_pack.samples.record import Record, caption_record, parse_record
from energon_pack.samples.sample import Part, Parts, ReadMedia, media_by_kind, media_kind_of_part, patch_positions_of
from energon_pack.samples.settings import PreferenceTake, ReadSettings, SampleType, ToolForm
from energon_pack.steps.journal import Consumed, Journal
from energon_pack.steps.position import State, check_states
from energon_pack.steps.topology import topology_of

__all__ = [
    "Consumed",
    "Journal",
    "Media",
    "cookers",
    "make_part_filter",
    "make_sample_loader",
    "options_of",
    "train_arguments",
]

_AUTO_SETTINGS = ReadSettings()  # the form of each sample is recognised


# ------------------------------------------------------------------------------------------- named by dataset.yaml


def make_sample_loader(
    flavor: str = "packed_multi_mix_qa",
    messages_key: str | None = None,
    sample_type: str = "auto",
    caption_prompt: str = "",
    source_root: str | None = None,
    take: str | None = None,
    tools: str = "auto",
) -> Callable[[Parts], dict[str, Any]]:
    """Return the sample loader of a flavour: it turns the parts of a sample into the fields of its class.

    Args:
        flavor: a name in `samples.flavors.FLAVORS`, or of a flavour that an installed package adds.
        messages_key, sample_type, caption_prompt, take, tools: how unpacked samples are read: `source.*` of the
            packing.
        source_root: the folder of the media that packs of `output.media=reference` refer to; None: the folder in
            ENERGON_PACK_SOURCE, else the one at packing.
    """
    if flavor != UNPACKED_FLAVOR.name:
        return partial(
            _load_pack_or_stop, flavor=packed_flavor_or_default(flavor), read=EnergonMediaReader(source_root)
        )
    settings = ReadSettings(
        messages_key,
        SampleType(sample_type),
        take=None if take is None else PreferenceTake(take),
        tools=ToolForm(tools),
        caption_prompt=caption_prompt,
    )
    return partial(load_multi_mix_qa, settings=settings)


def make_part_filter() -> Callable[[str], bool]:
    """Return the filter of sample parts that dataset.yaml names; it accepts every part."""
    return lambda part: True


# ------------------------------------------------------------------------------------------------- sample loaders


def _load_pack_or_stop(parts: Parts, flavor: PackedFlavor, read: ReadMedia) -> dict[str, Any]:
    """Load a pack; raises FatalSampleError if it is damaged: Energon would only log other errors, and train on."""
    try:
        return load_pack(parts, flavor, read)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        from energon_pack.loading.in_order import FatalSampleError

        why = str(error) if isinstance(error, PackError) else f"{parts['__key__']}: {type(error).__name__}: {error}"
        raise FatalSampleError(why) from None


def load_multi_mix_qa(parts: Parts, settings: ReadSettings = _AUTO_SETTINGS) -> dict[str, Any]:
    """Return the fields of a `MultiMixQASample` from an unpacked source sample, read as packing reads it."""
    key, files = str(parts.get("__key__", "")), [Part(name, 0, 0) for name in parts if not name.startswith("__")]
    record = _record_of_parts(parts, settings)
    chosen = find_media_parts(record, key, files)
    kinds = [media_kind_of_part(parts, part.name) for part in chosen]
    named = [Media(kind, extension=extension_of(part.name)) for part, kind in zip(chosen, kinds, strict=True)]
    refuse_other_kinds(record, key, chosen, named)
    placed = match_placeholders_with_media(record, kinds)
    arrays = [
        patch_positions_of(parts[find_listed_parts([name], key, files)[0].name]) if name else None
        for name in placed.patch_position_files
    ]
    media = media_by_kind(parts, [(chosen[i].name, kinds[i]) for i in placed.order])
    return {
        "messages": placed.timed_messages(arrays),
        **media_keyword_arguments({kind: values or None for kind, values in media.items()}, has_plural_names=False),
        "tools": record.tools,
        "video_frames": record.fields.get("video_frames"),
        "options": option_fields(placed.record.fields),
    }


def _record_of_parts(parts: Parts, settings: ReadSettings) -> Record:
    if "json" in parts:

        def read(value: Any) -> Record:
            return parse_record(parse_sample_json(value) if isinstance(value, bytes) else value, settings)

        txt = parts.get("txt") if any(map(media_kind_by_extension, parts)) else None
        return read_with_caption_beside(read, parts["json"], lambda: txt)[0]
    text = text_of_txt(parts["txt"])
    return Record(document_of(text)) if settings.sample_type is SampleType.document else caption_record(text, settings)


# ------------------------------------------------------------------------------------------------------- cookers


def cookers(**read: Any) -> list[Any]:
    """Return cookers of all flavours, for the `cookers` of a task encoder that reads crude datasets (`crude.yaml`).

    `read`: arguments of `make_sample_loader`, except `flavor`.
    """
    from megatron.energon import Cooker

    return [
        Cooker(
            _cook_function(make_sample_loader(flavor.name, **read), flavor),
            has_subflavors={"sample_type": flavor.subflavor},
        )
        for flavor in FLAVORS.values()
    ]


def _cook_function(load: Callable[[Parts], dict[str, Any]], flavor: Flavor) -> Callable[[dict[str, Any]], Any]:
    from megatron.energon import basic_sample_keys, stateless

    from energon_pack import flavors

    make = getattr(flavors, flavor.sample_class)

    def cook(sample: dict[str, Any]) -> Any:
        return make(**basic_sample_keys(sample), **load(sample))

    return cast(Callable[[dict[str, Any]], Any], stateless(cook))


# ------------------------------------------------------------------------------------------------ order of the plan


def train_arguments(
    path: str | Path,
    task_encoder: Any,
    worker_config: Any,
    states: Sequence[State] = (),
    micro_batches: int | None = None,
) -> dict[str, Any]:
    """Return keyword arguments for `megatron.energon.get_train_dataset`, to read packs in the plan's order.

    Args:
        path: folder of packs; for an encoder with `packing_buffer_size`, folder of samples, which Energon shuffles and
            packs. If it is a Metadataset, each worker draws its datasets at random, and a warning
            says that steps are not even.
        task_encoder: a `PackedTaskEncoder`; with any other encoder, Energon itself deals the packs.
        worker_config: Energon's: this rank, the number of ranks, and the workers of each.
        states: states to go on from: `Journal.state()` of every rank of a checkpoint, whatever their number; or only
            this rank's, if the number of ranks stays. For a blend they only say how much was consumed.
        micro_batches: packs of each rank in a step; if steps are not even with this number, a warning says so.

    Raises:
        ValueError: another task encoder is given states, or ranks and workers for which the packs were not laid out;
            the states are not a journal's; the dataset to pack has packs already.
    """
    check_states(states, "Journal.state()")
    common = {"worker_config": worker_config, "batch_size": 1, "shuffle_buffer_size": None}
    common |= {"max_samples_per_sequence": None, "task_encoder": task_encoder}
    ours = hasattr(task_encoder, "going_on")  # reading.PacksInOrder
    if ours:
        common["task_encoder"] = task_encoder.going_on(states, micro_batches)
    if (buffer_size := getattr(task_encoder, "packing_buffer_size", None)) is not None:
        if has_manifest(path):
            raise ValueError(f"{path} is packed: packing_buffer_size={buffer_size} packs unpacked samples")
        shuffled = {"shuffle_buffer_size": buffer_size, "max_samples_per_sequence": 100}
        return {**common, **shuffled, "packing_buffer_size": buffer_size}
    if is_metadataset(path):
        return common
    _refuse_other_ranks(path, worker_config, ours, bool(states))
    return {**common, "shuffle_over_epochs_multiplier": None, "parallel_shard_iters": 1}


def _refuse_other_ranks(dataset: str | Path, worker: Any, ours: bool, goes_on: bool) -> None:
    """Raise ValueError if Energon would deal packs to another number of ranks × workers than the plan is for."""
    if ours:
        return
    knob = "read with PackedTaskEncoder, or derive from reading.PacksInOrder"
    if goes_on:
        raise ValueError(f"{dataset}: only packs read in order go on from states: {knob}")
    manifest = read_manifest(dataset) if has_manifest(dataset) else {}
    if manifest.get("parts"):
        raise ValueError(f"{dataset} is an order over datasets, which Energon's own dealing does not know: {knob}")
    planned = topology_of(manifest)
    ranks, workers = worker.world_size, max(1, worker.num_workers)
    if not planned.has_several_packs_per_step or ranks * workers == (num := planned.row_size):
        return
    planned_for = f"{dataset} is laid out for {planned.data_parallel} ranks × {planned.workers} workers ({num})"
    fits = f"set num_workers={num // ranks}, or " if num % ranks == 0 else ""
    raise ValueError(f"{planned_for}, these are {ranks} × {workers}: {fits}{knob}")
