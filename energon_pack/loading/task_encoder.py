"""The task encoder for Energon: it turns packs into batches in which no member sees another.

    pack ─encode_sample─► members, each encoded alone ─batch─► one row a pack (neat), or one physical row (thd)

    dataset = get_train_dataset("packed/…", batch_size=1, task_encoder=PackedTaskEncoder("packed/…"), …)

Any `batch_size` from 1 on works; with `batch_size=None` Energon yields packs that are not laid out. The encoder reads
its settings from the dataset's energon_pack.json. Unpacked samples (`MultiMixQASample`, or crude ones through the
cookers) become packs of one member, so both can be blended.

With `packing_buffer_size` unpacked samples are packed while Energon reads them, by the settings of the dataset:

    sample ─encode_sample─► measured ─select_samples_to_pack─► packs ─pack_selected_samples─► encoded ─batch─► …
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from megatron.energon import Cooker, DefaultTaskEncoder, Sample, SkipSample, WorkerConfig, edataclass, stateless

from energon_pack.dataset.encoder import pack_encoder
from energon_pack.dataset.manifest import is_metadataset, packed_datasets, read_manifest
from energon_pack.errors import PackError, check_buffer_size
from energon_pack.loading import cookers
from energon_pack.loading.in_order import (
    FatalSampleError,
    PacksInOrder,
    buffer_samples_without_pack,
    manifest_of,
    positions_of,
)
from energon_pack.samples.flavors import UNPACKED_FLAVOR, flavor_of_sample, members_of_sample
from energon_pack.samples.member import MemberInput
from energon_pack.training.batch import PackedBatch
from energon_pack.training.encoded import BadPack, TrainingPack
from energon_pack.training.member_encoder import Encoded

if TYPE_CHECKING:
    from energon_pack.plan.sample_measures import SampleMeasurer

__all__ = ["EncodedPack", "PackedTaskEncoder"]

_log = logging.getLogger(__name__)
#: fields of energon_pack.json on which only training depends: how its packs lie in a batch
_FIELDS_OF_TRAINING = ("layout", "pad_to_multiple_of")


@edataclass
class EncodedPack(Sample):
    """A pack whose members are token ids, labels and media inputs, before it is laid out in a batch."""

    members: list[Encoded]
    #: media inputs of all members, in their order
    media: dict[str, torch.Tensor]
    #: ids of members that were left out
    dropped: list[str]


@edataclass
class MeasuredSample(Sample):
    """An unpacked sample with its measured length, in Energon's packing buffer."""

    member: MemberInput
    measured: Any  # plan.sample_measures.SampleMeasures
    #: samples that its worker encoded before
    num_encoded_before: int


class PackedTaskEncoder(PacksInOrder, DefaultTaskEncoder[Any, EncodedPack, PackedBatch, PackedBatch]):
    """Energon's task encoder for packed datasets, and for unpacked samples that are blended with them.

    Args:
        path: folder of the packed dataset, or the YAML of a Metadataset of several.
        processor: folder or hub id, in place of the files in the dataset; a class with code of its own needs one.
        trust_remote_code: run the processor's own code.
        packing_buffer_size: pack unpacked samples while reading, by the settings of `path`, from a buffer of this
            many samples; `train_arguments` gives Energon the same number. None: `path` is packed.
        options: `layout`, `pad_to`, `pad_segments`, `labels`, `loss_weight`, `attention_mask`, `pad_to_multiple_of`,
            `rope_rows`, `on_bad_member`, `dummy_image`, `tokens_per_second`: see `training.pack_encoder.PackEncoder`.
    """

    decoder = None  # images stay undecoded until a member needs them

    def __init__(
        self,
        path: str | Path,
        processor: str | None = None,
        *,
        trust_remote_code: bool = False,
        packing_buffer_size: int | None = None,
        **options: Any,
    ):
        super().__init__()
        self.encoder = pack_encoder(path, processor, trust_remote_code, **options)
        self.rules, self.members = self.encoder.rules, self.encoder.members
        self._path, manifest = path, self.encoder.made
        # rows of neat hold any packs, and whoever gives a layout has chosen
        is_by_plan = options.get("layout") is None and self.encoder.layout != "neat"
        self._may_differ_in_training = () if is_by_plan else _FIELDS_OF_TRAINING
        content = manifest["content"]
        read = content["source"]
        self._dataset_names = {str(part["path"]): part["name"] for part in manifest.get("parts") or ()}
        #: names of the entries of a mixture, for `source_losses`; empty: there is none, or it is in a blend
        self.sources: list[str] = [] if str(path).endswith((".yaml", ".yml")) else manifest.get("entries") or []
        if packing_buffer_size is not None:
            check_buffer_size("packing_buffer_size", packing_buffer_size)
        self.packing_buffer_size = packing_buffer_size
        self._measuring: SampleMeasurer | None = None
        if packing_buffer_size is not None:
            from energon_pack.dataset.packing_template import load_template
            from energon_pack.plan.sample_measures import make_sample_measurer

            template = load_template(path, processor, trust_remote_code)
            self._measuring = make_sample_measurer(content, template, options.get("on_bad_member") == "drop")
        self.cookers: Sequence[Cooker[Any]] = cookers(
            **{
                name: read[name]
                for name in ("messages_key", "sample_type", "caption_prompt", "take", "tools")
                if name in read
            }
        )

    @stateless  # type: ignore[untyped-decorator]
    def encode_sample(self, sample: Any) -> EncodedPack | MeasuredSample:
        """Encode each member of a pack; with `packing_buffer_size`, measure a sample.

        Raises:
            FatalSampleError: as `PackEncoder.encode`. Ends the training: Energon would only log any other error, and
                leave out the pack.
            SkipSample: all members were dropped.
        """
        if self._measuring is None:
            return self._encode_pack(sample, sample.__key__, self._named_members(sample))
        if flavor_of_sample(sample) is not UNPACKED_FLAVOR:
            raise FatalSampleError(f"{sample.__key__} is a pack: packing_buffer_size packs unpacked samples")
        (member,) = inputs_of(sample)
        try:
            measured = self._measuring.measure_member(member)
        except PackError as error:
            raise FatalSampleError(str(error)) from None
        if measured is None:
            raise SkipSample
        member = replace(member, token_len=measured.token_len)
        worker = WorkerConfig.active_worker_config
        number = 0 if worker is None else self.current_sample_index // max(1, worker.num_workers)
        waiting: MeasuredSample = MeasuredSample.derive_from(
            sample, member=member, measured=measured, num_encoded_before=number
        )
        return waiting

    def _named_members(self, sample: Any) -> Iterator[MemberInput]:
        """Yield the members of a pack; in an order over several datasets, ids begin with the dataset's name."""
        folder = (sample.__sources__[0].shard_name or "").rpartition("/")[0] if sample.__sources__ else ""
        name = self._dataset_names.get(folder)
        for member in inputs_of(sample):
            yield member if name is None else replace(member, sample_id=f"{name}/{member.sample_id}")

    def select_samples_to_pack(self, samples: list[MeasuredSample]) -> list[list[MeasuredSample]]:
        """Choose which samples in Energon's buffer share a pack; every sample is put into one.

        `build_batch` replaces this method in Energon's loader: there only full packs are made, other samples wait.
        """
        return self._choose_packs(samples, at_end=True)

    def _choose_packs(self, samples: list[MeasuredSample], at_end: bool) -> list[list[MeasuredSample]]:
        assert self._measuring is not None, "packing_buffer_size"
        folders = [str(sample.__sources__[0].dataset_path) if sample.__sources__ else "" for sample in samples]
        ages = [samples[-1].num_encoded_before - sample.num_encoded_before for sample in samples]
        packs = self._measuring.choose_packs([sample.measured for sample in samples], folders, ages, at_end)
        return [[samples[i] for i in pack] for pack in packs]

    def build_train_datasets(self, *, datasets: list[Any], **settings: Any) -> Any:
        """Build as Energon's own method does; PackError: this encoder can't read the packs of a dataset."""
        self._refuse_other_packs(datasets, self._may_differ_in_training)
        return super().build_train_datasets(datasets=datasets, **settings)

    def build_val_datasets(self, *, datasets: list[Any], **settings: Any) -> Any:
        """Build as Energon's own method does; PackError: this encoder can't read the packs of a dataset."""
        self._refuse_other_packs(datasets, _FIELDS_OF_TRAINING)
        return super().build_val_datasets(datasets=datasets, **settings)

    def _refuse_other_packs(self, datasets: list[Any], may_differ: Sequence[str]) -> None:
        """Raise PackError if a dataset was packed otherwise than this encoder's, but for the fields `may_differ`."""
        folders = packed_datasets(self._path) if is_metadataset(self._path) else ()
        own = [self.encoder.made, *map(read_manifest, folders)]
        manifests = {str(getattr(loaded.dataset, "path", "")): manifest_of(loaded.dataset) for loaded in datasets}
        others = {path: manifest for path, manifest in manifests.items() if manifest and manifest not in own}
        if not others:
            return
        from energon_pack.dataset import agreement

        made, *of_others = (
            {name: value for name, value in manifest.items() if name not in may_differ}
            for manifest in (self.encoder.made, *others.values())
        )
        agreement.refuse_packs_unfit_for_encoder(self._path, made, dict(zip(others, of_others, strict=True)))

    def build_batch(self, dataset: Any, **settings: Any) -> Any:
        """Call Energon's own method, but keep samples that fill no pack yet in its buffer."""
        buffer_size = settings.get("packing_buffer_size")
        if (buffer_size is None) is not (self._measuring is None):
            raise ValueError(
                f"PackedTaskEncoder(packing_buffer_size={self.packing_buffer_size}), and Energon was given"
                f" {buffer_size}: loading.train_arguments gives it the same"
            )
        built = super().build_batch(dataset, **settings)
        if self._measuring is not None:
            buffer_samples_without_pack(built, self._choose_packs)
        return built

    @stateless  # type: ignore[untyped-decorator]
    def pack_selected_samples(self, samples: list[MeasuredSample]) -> EncodedPack:
        """Encode the members of a pack, with their media."""
        more = f"+{len(samples) - 1}" if len(samples) > 1 else ""
        return self._encode_pack(samples[0], samples[0].__key__ + more, (sample.member for sample in samples))

    def _encode_pack(self, first: Any, key: str, members: Iterable[MemberInput]) -> EncodedPack:
        """Encode a pack; `first`: the Energon sample whose keys and sources the encoded pack gets."""
        try:
            pack = self.encoder.encode(key, members)
        except BadPack as error:
            raise FatalSampleError(str(error)) from error.__cause__
        if pack is None:
            raise SkipSample
        fields = {"members": pack.members, "media": pack.media, "dropped": pack.dropped}
        encoded: EncodedPack = EncodedPack.derive_from(first, __key__=key, **fields)
        return encoded

    @stateless  # type: ignore[untyped-decorator]
    def batch(self, samples: list[EncodedPack]) -> PackedBatch:
        """Lay packs out in one batch, by the options of this encoder."""
        try:
            batch = self.encoder.batch(
                [TrainingPack(sample.__key__, sample.members, sample.media, sample.dropped) for sample in samples]
            )
        except BadPack as error:
            raise FatalSampleError(str(error)) from None
        batch |= {"positions": positions_of(samples), "__restore_key__": ()}  # Energon fills in the key
        return batch


def inputs_of(sample: Any) -> Iterator[MemberInput]:
    """Yield the members of an Energon sample of any flavour; raises FatalSampleError for other classes."""
    flavor = flavor_of_sample(sample)
    if flavor is None:
        raise FatalSampleError(f"{type(sample).__name__} is no flavour of energon_pack")
    yield from members_of_sample(flavor, sample)
