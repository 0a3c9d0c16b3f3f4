"""Assign samples to splits by their ids and the seed alone, so that new data move no sample. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from zlib import crc32

import numpy as np
import numpy.typing as npt

from energon_pack.errors import PackError
from energon_pack.run.seeded import mixed
from energon_pack.sources.draws import source_key

#: those that Energon's tools ask for
SPLITS = ("train", "val", "test")


def split_shares(given: Mapping[str, float | None]) -> tuple[float, ...]:
    """The share of each of `SPLITS`: what is given, and for `train`, where it is not, the rest.

    Raises:
        PackError: shares that do not come to 1.
    """
    others = sum(given.get(name) or 0.0 for name in SPLITS[1:])
    train = given.get("train")
    shares = (1.0 - others if train is None else train, *(given.get(name) or 0.0 for name in SPLITS[1:]))
    if min(shares) < 0 or abs(sum(shares) - 1) > 1e-9:
        raise PackError(f"output.splits={dict(given)}: shares from 0 to 1, which come to 1 (train: null is the rest)")
    return shares


def split_numbers(samples: Iterable[str], shares: Sequence[float], seed: int) -> npt.NDArray[np.int8]:
    """For each sample the index in `SPLITS`; the parts and the copies of one are all in the same.

    Args:
        samples: ids, without the part of one that was cut.
    """
    codes = np.fromiter((crc32(source_key(sample).encode()) for sample in samples), np.uint64)
    place = mixed(codes ^ mixed(np.array([seed + 1], np.uint64))) * 2.0**-64
    return np.searchsorted(np.cumsum(shares)[:-1], place, side="right").astype(np.int8)
