"""Checksums of the media that packs hold, in `.nv-meta/media.crc32`: `verify` compares media with them.

    (packs + 1) × uint64    where the checksums of each pack begin in the file, and the end of the last pack's
    media × uint32          the CRC-32 of each file that was copied from the source, in the order of the shards

Numbers are little-endian. What is known of one shard has the same form, and is joined at the end.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from energon_pack.dataset.files import nested_value
from energon_pack.dataset.folder import DatasetFolder
from energon_pack.dataset.manifest import hash_of
from energon_pack.run.files import META_FOLDER
from energon_pack.samples.bytes import Bytes

#: only a dataset whose packs hold media has it
MEDIA_SUMS_FILE = "media.crc32"
_PLACE_BYTES, _SUM_BYTES = 8, 4


def checksums_to_bytes(
    bounds: Sequence[int] | npt.NDArray[np.uint64], sums: Sequence[int] | npt.NDArray[np.uint32]
) -> bytes:
    """Return the bytes of checksums. `bounds`: for each pack how many are before its own; then how many there are."""
    places = np.array(bounds, "<u8") * _SUM_BYTES + _PLACE_BYTES * len(bounds)
    return places.tobytes() + np.array(sums, "<u4").tobytes()


def joined_checksums(shards: Iterable[bytes]) -> bytes | None:
    """Join the checksums of shards, in their order, to the bytes of a dataset's file; None: packs hold no media."""
    counts, sums = [np.zeros(1, np.uint64)], [np.zeros(0, "<u4")]
    for data in shards:
        end = int(np.frombuffer(data, "<u8", 1)[0])
        counts.append(np.diff(np.frombuffer(data[:end], "<u8")) // _SUM_BYTES)
        sums.append(np.frombuffer(data[end:], "<u4"))
    every = np.concatenate(sums)
    return checksums_to_bytes(np.cumsum(np.concatenate(counts)), every) if len(every) else None


class MediaChecksums(NamedTuple):
    """The checksums of a dataset, read pack by pack."""

    file: Bytes
    key_prefix: str  # of the keys of its packs

    def of_pack(self, key: str) -> list[int] | None:
        """Return the checksums of a pack's media, in its order; None: packing wrote no pack with this key."""
        number = key.removeprefix(f"{self.key_prefix}_")
        if not (number.isascii() and number.isdigit() and f"{self.key_prefix}_{int(number):08d}" == key):
            return None
        num_packs = int(np.frombuffer(self.file.read(0, _PLACE_BYTES), "<u8")[0]) // _PLACE_BYTES - 1
        if int(number) >= num_packs:
            return None
        start, end = np.frombuffer(self.file.read(_PLACE_BYTES * int(number), 2 * _PLACE_BYTES), "<u8").tolist()
        sums: list[int] = np.frombuffer(self.file.read(start, end - start), "<u4").tolist()
        return sums


@contextmanager
def open_checksums(folder: DatasetFolder, key_prefix: str) -> Iterator[MediaChecksums | None]:
    """Open the checksums of a dataset's media; None: it has none."""
    name = f"{META_FOLDER}/{MEDIA_SUMS_FILE}"
    if not folder.has(name):
        yield None
        return
    with folder.open(name) as file:
        yield MediaChecksums(file, key_prefix)


def why_checksums_unusable(folder: DatasetFolder, manifest: Mapping[str, Any]) -> str | None:
    """Say why media can't be compared with their checksums; None: they can."""
    name = f"{META_FOLDER}/{MEDIA_SUMS_FILE}"
    if not folder.has(name):
        return f"the dataset has no {name}, which this version writes"
    try:
        is_whole = hash_of(folder.read(name)) == nested_value(manifest, "hashes", MEDIA_SUMS_FILE)
    except OSError as error:
        return f"{name} can't be read: {error.strerror or error}"
    return None if is_whole else f"{name} is not as it was packed"
