"""Read packed shards with `webdataset` alone: the same packs and batches as the task encoder's, without Energon.

    encoded = packs("packed/…", layout="neat")
    shards = wds.WebDataset(shard_urls("packed/…"), shardshuffle=100, nodesplitter=wds.split_by_node)
    loader = DataLoader(shards.compose(encoded), batch_size=2, collate_fn=encoded.collate, num_workers=2)

Webdataset itself deals shards to workers, shuffles, resamples and caches. Unshuffled, the packs of a shard come in the
order of the plan.
"""

import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tarfile import TarError
from typing import Any

from webdataset.utils import pytorch_worker_info

from energon_pack.dataset.damaged_shards import refuse_damaged_shards, unreadable_shard_error
from energon_pack.dataset.encoder import pack_encoder
from energon_pack.dataset.manifest import read_manifest
from energon_pack.dataset.pack_parts import members_of_pack
from energon_pack.dataset.source_media import ReferencedMediaReader
from energon_pack.errors import PackError
from energon_pack.run.files import META_FOLDER
from energon_pack.sources.prepared_folder import PreparedFolder, read_prepared_folder
from energon_pack.training.batch import PackedBatch
from energon_pack.training.encoded import TrainingPack
from energon_pack.training.pack_encoder import PackEncoder

__all__ = ["Packs", "packs", "shard_urls"]

_log = logging.getLogger(__name__)


def shard_urls(path: str | Path, split: str = "train") -> list[str]:
    """Return the shard paths of one split of a packed dataset, in the order of the plan, for `wds.WebDataset`.

    Args:
        path: folder of the packed dataset.
        split: a split in its split.yaml; shards that split.yaml excludes are left out.
    """
    prepared = _read_prepared_folder(path, split)
    if prepared is None:
        raise PackError(f"{path} has no {META_FOLDER}/split.yaml: of any tars, give WebDataset their names")
    names = sorted((prepared.shards or frozenset()) - prepared.excluded_shards)
    if not names:
        raise PackError(f"split={split}: {path} has no shard in it: output.splits.{split} of the packing fills it")
    if pytorch_worker_info()[0] == 0:
        refuse_damaged_shards(prepared.folder, read_manifest(path), names)
    return [os.path.join(prepared.folder, name) for name in names]


def packs(
    path: str | Path,
    processor: str | None = None,
    *,
    trust_remote_code: bool = False,
    **options: Any,
) -> "Packs":
    """Return a pipeline stage for webdataset's `compose`, which turns the samples of shards into encoded packs.

    Args:
        path: folder of the packed dataset.
        processor: folder or hub id, in place of the files in the dataset; a class with code of its own needs one.
        trust_remote_code: run the processor's own code.
        options: `layout`, `pad_to`, `labels` …: see `training.pack_encoder.PackEncoder`.
    """
    prepared = _read_prepared_folder(path)
    encoder = pack_encoder(path, processor, trust_remote_code, **options)
    if encoder.pairs is not None:
        raise PackError(f"{path}: preference pairs are read by PackedTaskEncoder or PackedDataset, not by webdataset")
    return Packs(os.fspath(path), encoder, prepared)


class Packs:
    """A stage of a webdataset pipeline that encodes packs; it can be pickled for spawned workers."""

    def __init__(self, dataset: str, encoder: PackEncoder, prepared: PreparedFolder | None):
        #: pass it to `guard`
        self.encoder = encoder
        self._dataset = dataset
        self._root = os.path.join(os.path.abspath(dataset), "")
        self._media = ReferencedMediaReader(self._root)
        self._excluded = prepared.excluded_keys if prepared else {}
        self._counts = prepared.shard_counts if prepared else {}
        self._names_of_urls: dict[str, str] = {}
        self._flavor: str = encoder.made["flavor"]

    def __call__(self, samples: Iterable[Mapping[str, Any]]) -> Iterator[TrainingPack]:
        """Yield each sample of webdataset as an encoded pack, without those that split.yaml excludes or that lost all
        members.

        After the last pack a warning names shards that lacked some of their packs.
        """
        seen: Counter[str] = Counter()
        for parts in self._checked_nonempty(samples):
            key, shard = parts["__key__"], self._shard_name(parts["__url__"])
            seen[shard] += 1
            if key in self._excluded.get(shard, ()):
                continue
            pack = self.encoder.encode(key, members_of_pack(_CaselessParts(parts), self._flavor, self._media.read))
            if pack is not None:
                yield pack
        for shard, count in seen.items():
            if count % self._counts.get(shard, 1):  # `resampled` reads some again
                warning = "%s: %d packs of %s came, which has %d: a stage before left some out, or the tar was cut"
                _log.warning(warning, self._dataset, count, shard, self._counts[shard])

    def collate(self, packs: Sequence[TrainingPack]) -> PackedBatch:
        """Lay packs out in one batch: `collate_fn` of a DataLoader, `collation_fn` of webdataset's `batched`.

        Raises the errors of `PackEncoder.batch`.
        """
        return self.encoder.batch(packs)

    def _shard_name(self, url: str) -> str:
        """Return the name in split.yaml of the shard at an address, which may be relative, remote or a pipe."""
        if url not in self._names_of_urls:
            path = url.removeprefix(self._root)
            named = [name for name in self._counts if path == name or path.endswith(f"/{name}")]
            self._names_of_urls[url] = max(named, key=len, default=path)
        return self._names_of_urls[url]

    def _checked_nonempty(self, samples: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """Yield all samples; if there are none, warn that webdataset dealt this worker no shard, or raise PackError."""
        stream = _naming_damaged_shards(samples)
        try:
            first = next(stream, None)
        except ValueError as error:
            if "No samples found" not in str(error):  # webdataset's `check_empty`
                raise
            raise PackError(self._no_shard_message()) from None
        if first is None:
            _log.warning("%s", self._no_shard_message())
            return
        yield first
        yield from stream

    def _no_shard_message(self) -> str:
        rank, ranks, worker, workers = pytorch_worker_info()
        return (
            f"{self._dataset}: no pack for worker {worker} of {workers} of rank {rank} of {ranks}. webdataset deals"
            f" whole shards, so {ranks * workers} are needed: set num_workers lower, or pack with a lower"
            " output.max_shard_packs, or read with resampled=True"
        )


def _naming_damaged_shards(samples: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield samples; errors of reading name the shard, which webdataset appends to their arguments."""
    try:
        yield from samples
    except (OSError, TarError) as error:
        raise unreadable_shard_error(str(getattr(error, "filename", None) or error.args[-1]), error) from None


class _CaselessParts(dict[str, Any]):
    """The parts of a pack by name; `get` ignores case, because webdataset writes part names in lower case."""

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name.lower(), default)


def _read_prepared_folder(dataset: str | Path, split: str | None = None) -> PreparedFolder | None:
    if os.path.isfile(dataset):
        raise PackError(
            f"{dataset} is a file: name the folder of a packed dataset; webdataset blends several WebDatasets, each"
            " with the packs of its own, with wds.RandomMix"
        )
    return read_prepared_folder(os.path.abspath(dataset), split, "split")
