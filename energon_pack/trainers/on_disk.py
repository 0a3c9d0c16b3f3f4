"""Read packs on disk by number: a map-style dataset for a plain DataLoader, and for trainers that want one.

    packs = PackedDataset("packed/…")
    loader = DataLoader(packs, sampler=PackSampler(packs), collate_fn=packs.collate, num_workers=4)

number ──split──► its place in the shards ──.tar.idx──► its bytes ──► members, encoded ──collate──► a batch
"""

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from energon_pack.dataset.damaged_shards import refuse_damaged_shards
from energon_pack.dataset.encoder import pack_encoder
from energon_pack.dataset.folder import DatasetFolder
from energon_pack.dataset.manifest import PACK_TOTALS_FILE, PackTotals, is_metadataset, read_unchanged
from energon_pack.dataset.pack_files import members_of_pack
from energon_pack.dataset.pack_parts import PackPartReader
from energon_pack.errors import PackError
from energon_pack.run.seeded_random import Ints
from energon_pack.samples.member import MemberInput
from energon_pack.sources.prepared_folder import read_prepared
from energon_pack.steps.topology import ranks_here, topology_of
from energon_pack.trainers.pack_datasets import PacksByNumber

__all__ = ["PackedDataset"]


class PackedDataset(PacksByNumber):
    """A map-style dataset of the packs of a folder; an item is an encoded pack.

    Args:
        path: folder of the packed dataset, or its address on an object store.
        processor: folder or hub id, in place of the files in the dataset; a class with code of its own needs one.
        split: a split that its split.yaml names.
        trust_remote_code: run the processor's own code.
        options: options of PackEncoder: `layout`, `labels`, `pad_to`, `on_bad_member`, `dummy_image` …

    Raises:
        PackError: there is no such split, or no pack in it; or the dataset is a Metadataset.
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
        self.encoder = pack_encoder(path, processor, trust_remote_code, **options)
        self.micro_batches = topology_of(self.encoder.made).micro_batches
        self._files = PackPartReader(DatasetFolder(path))
        numbers, sums = self._in_split(split), self._read_sums()
        if not len(numbers):
            raise PackError(f"split={split}: {path} has no pack in it: output.splits.{split} of the packing fills it")
        self._num_packs, self._numbers = len(numbers), numbers
        self._split_sums = PackTotals(*(column[numbers] for column in sums))
        self._seed = int((self.encoder.made["content"].get("plan") or {}).get("seed", 0))
        of_seed = f"-seed{self._seed}" * bool(self._seed)  # earlier versions had orders, so states, of seed 0 alone
        self.fingerprint = f"{self.encoder.made['key_prefix']}-{split}-{len(numbers)}{of_seed}"

    def _key_and_members(self, epoch: int, number: int) -> tuple[str, Iterable[MemberInput]]:
        parts = self._files.parts(int(self._numbers[number]))
        return parts["__key__"], members_of_pack(parts, self.encoder.made["flavor"], self._files.read_media)

    def _pack_totals(self, epoch: int) -> PackTotals:
        return self._split_sums

    @cached_property
    def config(self) -> SimpleNamespace:
        """The `seed` and `packing` settings with which the dataset was packed; samplers need them."""
        from energon_pack.plan.settings import PackingConfig
        from energon_pack.run.plain_data import dataclass_from_plain

        packing = dataclass_from_plain(PackingConfig, self.encoder.made["content"]["packing"])
        return SimpleNamespace(seed=self._seed, packing=packing)

    def _in_split(self, split: str) -> Ints:
        """Return the numbers of a split's packs in the dataset; PackError: the split or a shard of it is missing."""
        folder, manifest = self._files.folder, self.encoder.made
        prepared = read_prepared(folder.path, split, "split")
        if prepared is None:
            raise PackError(f"{folder} has no split.yaml: python -m energon_pack.verify says what is wrong")
        shard_names = (prepared.shards or frozenset()) - prepared.excluded_shards
        if ranks_here()[0] == 0:
            refuse_damaged_shards(folder.path, manifest, sorted(shard_names))
        shards = np.repeat([*self._files.shard_counts], [*self._files.shard_counts.values()])
        prefix, excluded = manifest.get("key_prefix"), prepared.excluded_keys
        taken = [
            number
            for number, shard in enumerate(shards.tolist())
            if shard in shard_names and f"{prefix}_{number:08d}" not in excluded.get(shard, ())
        ]
        return np.array(taken, np.int64)

    def _read_sums(self) -> PackTotals:
        """Read sums over the members of each pack of the dataset; PackError: they are not of these shards."""
        folder, hashes = self._files.folder, self.encoder.made.get("hashes", {})
        try:
            sums = PackTotals.read(read_unchanged(folder.path, PACK_TOTALS_FILE, hashes.get(PACK_TOTALS_FILE)))
        except (OSError, ValueError) as error:
            raise PackError(str(error)) from None
        if len(sums.tokens) != len(self._files):
            raise PackError(
                f"{folder} has {len(self._files)} packs, and {PACK_TOTALS_FILE} has {len(sums.tokens)}:"
                " python -m energon_pack.verify says what is wrong"
            )
        return sums
