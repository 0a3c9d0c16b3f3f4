"""Find the packs in a shard: neighbouring files with one key."""

from collections.abc import Iterator
from typing import NamedTuple

from energon_pack.samples.sample import Part
from energon_pack.sources.tar import BLOCK, TarScan


class PackFiles(NamedTuple):
    """The files of one pack in its shard."""

    key: str
    start: int  # place of its first header
    end: int  # place after its last block
    parts: list[Part]  # in the tar's order


def packs_in(scan: TarScan) -> Iterator[PackFiles]:
    """Yield the packs of a shard: neighbouring files with one key."""
    key, start, end = "", 0, 0
    parts: list[Part] = []
    for name, offset, size in scan:
        its_key, _, part = name.partition(".")
        if parts and its_key != key:
            yield PackFiles(key, start, end, parts)
            start, parts = end, []
        key = its_key
        parts.append(Part(part, offset, size))
        end = offset - -max(size, 0) // BLOCK * BLOCK
    if parts:
        yield PackFiles(key, start, end, parts)
