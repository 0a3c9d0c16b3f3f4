"""Measure the conversations of a user's own dataset once, and keep the lengths in the cache by its fingerprint."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch
from torch.utils.data import DataLoader, Dataset

from energon_pack.lengths.changed_media import Stale, stale_rows
from energon_pack.lengths.index import IndexedShard
from energon_pack.lengths.measure import MeasuredShard, add_news, lengths_cache
from energon_pack.lengths.method import Method
from energon_pack.lengths.table_cache import key_of
from energon_pack.lengths.worker import LengthsRow, leave_out, lengths_table, measured, note
from energon_pack.online.given import NAME, Given
from energon_pack.run.context import Run
from energon_pack.run.seeded import Ints
from energon_pack.samples.sample import media_type
from energon_pack.samples.skip import Skip
from energon_pack.sources.sample import ReadSample
from energon_pack.sources.shard import TarShard
from energon_pack.templates.processor import load_saved

_SLICE = 500  # samples a job
_VERSION = 2  # raised when `Given.read` gives other conversations


def measure_given(given: Given, fingerprint: str, method: Method, run: Run, num_workers: int | None) -> MeasuredShard:
    """Measure samples that are not in the cache yet, or whose media files changed; return the lengths of all.

    Args:
        fingerprint: identifies the dataset; a changed dataset needs another one.
        num_workers: processes; None: all cores. They receive the dataset as workers of any DataLoader do.
    """
    cache, num = lengths_cache(method, run), len(given)
    key = key_of(NAME, fingerprint, num, _VERSION)
    files = _Conversations(NAME, NAME, num, fingerprint, given.root)
    kept, missing = cache.find(key, num)
    there = np.delete(np.arange(num), missing).tolist()
    found = stale_rows([files], [kept], run.executor).get(0, {})
    stale: Stale = {0: {there[row]: said for row, said in found.items()}}
    todo = np.union1d(missing, np.array([*stale[0]], np.int64))
    slices = [todo[start : start + _SLICE] for start in range(0, len(todo), _SLICE)]
    workers = min(num_workers or len(os.sched_getaffinity(0)), len(slices))
    # With its own generator on the host, this loader changes no random numbers of the training.
    loader = DataLoader(
        _Slices(given, slices, method),
        batch_size=None,
        num_workers=workers if workers > 1 else 0,
        generator=torch.Generator(device="cpu"),
    )
    run.progress.add(cached=num - len(todo))
    with torch.device("cpu"), run.progress.stage("measure", len(todo), "samples") as advance:
        try:
            for numbers, table in zip(slices, loader, strict=True):
                add_news(cache, [key], table, np.zeros_like(numbers), numbers, stale)
                run.progress.add(table.num_rows)
                advance(table.num_rows)
        finally:
            cache.flush()
    pieces, missing = cache.find(key, num)
    assert not len(missing)
    return MeasuredShard(IndexedShard(files, key, pieces, num, {}), pieces, was_cached=not slices)


@dataclass(frozen=True)
class _Conversations(TarShard):
    """Takes the place of a source's shard; media that are given by paths are files under `root`."""

    root: str

    @property
    def media_root(self) -> str:
        return self.root


class _Slices(Dataset[pa.Table]):
    """Each item measures a slice of the samples."""

    def __init__(self, given: Given, slices: Sequence[Ints], method: Method):
        self._given, self._slices, self._method = given, slices, method

    def __len__(self) -> int:
        return len(self._slices)

    def __getitem__(self, number: int) -> pa.Table:
        template = load_saved(self._method.template_folder)
        return lengths_table(measured(self._read(self._slices[number]), template, self._method))

    def _read(self, numbers: Ints) -> Iterator[tuple[LengthsRow, ReadSample | None]]:
        for number in numbers.tolist():
            row = LengthsRow(str(number), "", 0, 0, [], [], None, 0, 0, 0)
            try:
                sample, _ = self._given.read(number)
            except Skip as skip:
                leave_out(row, skip)
                yield row, None
                continue
            row.media_type, row.files = media_type(sample.kinds), self._given.files(sample)
            note(row, sample)
            yield row, sample
