"""Draw samples of a source by the `sample_ratio` of a meta file. Pure."""

import re
from collections.abc import Sequence
from zlib import crc32

import numpy as np

from energon_pack.run.seeded_random import Ints, random_keys

_COPY_MARK = re.compile(r"@\d+$")


def drawn_rows(num_rows: int, ratio: float, name: str, seed: int) -> Ints:
    """Draw each row of a shard `ratio` times (1.3: all once, 30% again); return the row numbers, ascending."""
    whole = int(ratio)
    count = np.full(num_rows, whole)
    chance = np.argsort(random_keys(num_rows, seed, crc32(name.encode())), kind="stable")
    count[chance[: round(num_rows * (ratio - whole))]] += 1
    return np.repeat(np.arange(num_rows), count)


def copy_numbers(rows: Ints) -> Ints:
    """Count for each of these ascending row numbers its earlier occurrences: [3, 3, 5] gives [0, 1, 0]."""
    first: Ints = np.searchsorted(rows, rows)
    return np.arange(len(rows)) - first


def drawn_keys(keys: Sequence[str], rows: Ints, copies: Ints) -> list[str]:
    """Return the key of each drawn row; its second draw ends with `@2`. `copies`: what `copy_numbers(rows)` returns."""
    pairs = zip(rows.tolist(), copies.tolist(), strict=True)
    return [f"{keys[row]}@{copy + 1}" if copy else keys[row] for row, copy in pairs]


def source_key(key: str) -> str:
    """Return the key of a sample in its source, without the `@2` of a copy."""
    return _COPY_MARK.sub("", key)
