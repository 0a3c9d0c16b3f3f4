"""Read packs on disk by number: a map-style dataset for a plain DataLoader, and for trainers that want one.

    packs = PackedDataset("packed/…")
    loader = DataLoader(packs, sampler=PackSampler(packs), collate_fn=packs.collate, num_workers=4)

number ──split──► its place in the shards ──.tar.idx──► its bytes ──► members, encoded ──collate──► a batch
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from energon_pack.dataset.folder import DatasetFolder
from energon_pack.dataset.manifest import PACKS, is_metadataset, read_as_packed, read_manifest
from energon_pack.dataset.pack_members import members_in
from energon_pack.dataset.pack_parts import PackParts
from energon_pack.dataset.readable import refuse_lost
from energon_pack.dataset_encoder import pack_encoder
from energon_pack.errors import PackError
from energon_pack.online.ranks import ranks_here
from energon_pack.run.seeded import Ints
from energon_pack.samples.member import MemberInput
from energon_pack.sources.prepared import read_prepared
from energon_pack.steps.topology import topology_of
from energon_pack.trainers.doors import Numbered
from energon_pack.training.batch import PackedBatch
from energon_pack.training.pack_encoder import BadPack, Pack

if TYPE_CHECKING:
    from energon_pack.plan.settings import PackingConfig

__all__ = ["PackedDataset"]

Sums = dict[str, npt.NDArray[np.float64]]
#: the columns of `.nv-meta/packs.npy`
_SUMS = ("lm", "vision", "token_len", "num_supervised")


@dataclass(frozen=True)
class Settings:
    """The settings of the packing on which an order of packs depends."""

    seed: int
    packing: "PackingConfig"


class PackedDataset(Numbered, Dataset[Pack]):
    """A map-style dataset of the packs of a folder; an item is an encoded pack.

    Args:
        path: folder of the packed dataset, or its address on an object store.
        processor: folder or hub id, in place of the files in the dataset; a class with code of its own needs one.
        split: a part of its split.yaml.
        trust_remote_code: run the processor's own code.
        options: options of PackEncoder: `layout`, `labels`, `pad_to`, `on_bad_member`, `dummy_image` …

    Raises:
        PackError: there is no such part, or no pack in it; or the dataset is a Metadataset.
        FileNotFoundError: the folder is not a dataset that this package packed.
        ValueError: the errors of PackEncoder; a processor with another tokenizer than that of the packing; or another
            version of this package packed the dataset.
    """

    #: each epoch has the same packs in another order
    repeats = True

    def __init__(
        self,
        path: str | Path,
        processor: str | None = None,
        *,
        split: str = "train",
        trust_remote_code: bool = False,
        **options: Any,
    ):
        if is_metadataset(path):
            raise PackError(f"{path} is a file: name the folder of one packed dataset")
        manifest = read_manifest(path)
        self.encoder = pack_encoder(path, processor, trust_remote_code, **options)
        #: packs of each rank in a step
        self.micro_batches = topology_of(manifest).micro_batches
        self._folder, self._flavor = DatasetFolder(path), manifest["flavor"]
        self._numbers, self._sums, prefix = self._in_split(split, manifest)
        if not len(self._numbers):
            raise PackError(f"split={split}: {path} has no pack in it: output.splits.{split} of the packing fills it")
        #: identifies these packs
        self.fingerprint = f"{prefix}-{split}-{len(self._numbers)}"

    def __len__(self) -> int:
        """Number of packs in every epoch."""
        return len(self._numbers)

    def __getitem__(self, index: int | tuple[int, int]) -> Pack:
        """Read and encode a pack.

        Args:
            index: its number in the order of the plan; or (epoch, number), which `PackSampler` gives.

        Raises:
            BadPack: a member can't be encoded, and `on_bad_member=raise`; or no member can; or its JSON can't be read.
        """
        number = index[1] if isinstance(index, tuple) else index
        if not -len(self) <= number < len(self):
            raise IndexError(f"pack {number} of {len(self)}")
        parts = self._packs.parts(int(self._numbers[number]))
        pack = self.encoder.encode(parts["__key__"], self._members(parts))
        if pack is None:
            raise BadPack(f"{parts['__key__']}: none of its members can be encoded")
        return pack

    def members(self, epoch: int, number: int) -> Iterator[MemberInput]:
        """Read the members of a pack, without encoding them; every epoch has the same."""
        yield from self._members(self._packs.parts(int(self._numbers[number])))

    def collate(self, packs: Sequence[Pack]) -> PackedBatch:
        """Lay packs out in a batch: `collate_fn` of a DataLoader."""
        return self.encoder.batch(packs)

    @cached_property
    def config(self) -> Settings:
        """The settings of the packing on which an order of packs depends; samplers ask for them."""
        from energon_pack.plan.settings import PackingConfig
        from energon_pack.run.json_nodes import node_of

        content = self.encoder.made["content"]
        return Settings(int(content.get("seed", 0)), node_of(PackingConfig, content["packing"]))

    def have_epoch(self, epoch: int) -> None:
        """Do nothing: every epoch has the same packs."""

    def costs(self, epoch: int) -> tuple[npt.NDArray[np.float64], Ints]:
        """Return the costs by which `PackSampler` makes steps even: see `LazyPackedDataset.costs`."""
        return np.stack([self._sums["lm"], self._sums["vision"]]), self._sums["num_supervised"].astype(np.int64)

    def lens(self, epoch: int = 0) -> Ints:
        """The tokens of each pack, int64[num_packs]: the same in each epoch."""
        return self._sums["token_len"].astype(np.int64)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without open files."""
        return {name: value for name, value in vars(self).items() if name != "_packs"}

    @cached_property
    def _packs(self) -> PackParts:
        return PackParts(self._folder)

    def _members(self, parts: dict[str, Any]) -> Iterator[MemberInput]:
        return members_in(parts, self._flavor, self._packs.media.read)

    def _in_split(self, split: str, manifest: Mapping[str, Any]) -> tuple[Ints, Sums, str]:
        """Return the numbers of a split's packs in the whole dataset, sums over their members, and the keys' beginning.

        Raises:
            PackError: there is no such part; or a shard is missing or cut; or shards and plan have other numbers of
                packs.
        """
        prepared = read_prepared(self._folder.path, split, "split")
        if prepared is None:
            raise PackError(f"{self._folder} has no split.yaml: python -m energon_pack.verify says what is wrong")
        wanted = (prepared.shards or frozenset()) - prepared.excluded_shards
        if ranks_here()[0] == 0:
            refuse_lost(self._folder.path, manifest, sorted(wanted))
        counts = self._packs.counts
        sums = _read_sums(self._folder)
        if len(sums) != sum(counts.values()):
            raise PackError(
                f"{self._folder} has {sum(counts.values())} packs, and {PACKS} has {len(sums)}:"
                " python -m energon_pack.verify says what is wrong"
            )
        prefix = str(manifest["key_prefix"])
        shards = np.repeat([*counts], [*counts.values()])
        excluded = prepared.excluded_keys
        taken = [
            number
            for number, shard in enumerate(shards.tolist())
            if shard in wanted and f"{prefix}_{number:08d}" not in excluded.get(shard, ())
        ]
        numbers = np.array(taken, np.int64)
        return numbers, dict(zip(_SUMS, sums[numbers].T, strict=True)), prefix


def _read_sums(folder: DatasetFolder) -> npt.NDArray[np.float64]:
    """Read the sums over the members of each pack: see `dataset.pack_sums`.

    Raises:
        PackError: the file is missing, or not as it was packed.
    """
    try:
        sums: npt.NDArray[np.float64] = np.load(io.BytesIO(read_as_packed(folder.path, PACKS)), allow_pickle=False)
    except (OSError, ValueError) as error:
        raise PackError(str(error)) from None
    return sums
