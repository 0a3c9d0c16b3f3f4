"""Assign samples to splits only by their ids and the seed, so that new data move no sample. Pure."""

from collections.abc import Iterable, Sequence
from zlib import crc32

import numpy as np
import numpy.typing as npt

from energon_pack.run.seeded_random import mix_bits_in_place
from energon_pack.sources.sample_ratio import remove_copy_mark

#: the splits that Energon's tools expect
SPLITS = ("train", "val", "test")


def assign_samples_to_splits(sample_ids: Iterable[str], shares: Sequence[float], seed: int) -> npt.NDArray[np.int8]:
    """Assign samples to splits, by a hash of their ids; return the index in `SPLITS` of each.

    All parts and copies of a sample are in the same split. A caller who keeps samples of one medium together
    (`plan/items.py`, `verify/shard_checks.py`) gives the medium's hash as their id.
    """
    codes = np.fromiter((crc32(remove_copy_mark(sample).encode()) for sample in sample_ids), np.uint64)
    place = mix_bits_in_place(codes ^ mix_bits_in_place(np.array([seed + 1], np.uint64))) * 2.0**-64
    return np.searchsorted(np.cumsum(shares)[:-1], place, side="right").astype(np.int8)
