"""Read the media that a pack refers to as if they lay behind it in its shard."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from energon_pack.dataset.referenced import DatasetMedia
from energon_pack.samples.bytes import Bytes
from energon_pack.samples.references import Reference
from energon_pack.sources.referenced import AT_ONCE


class Beside:
    """The bytes of a shard up to the end of a pack, followed by the bytes of the media that the pack refers to.

    Args:
        end: where the pack ends.
    """

    def __init__(self, shard: Bytes, end: int, references: Sequence[Reference], media: DatasetMedia):
        self._shard, self._references, self._media = shard, references, media
        self._starts = starts_behind(end, references)
        self.size = self._starts[-1]
        self._last: tuple[int, Bytes] = -1, shard
        self._ahead = -1  # number of the last group of media that were read together

    def read(self, offset: int, size: int) -> bytes:
        """Read bytes like a file; raises like `opened` if they are in a medium."""
        if offset < self._starts[0]:
            return self._shard.read(offset, size)
        index = bisect_right(self._starts, offset) - 1
        if index == len(self._references):
            return b""
        if self._last[0] != index:
            if index // AT_ONCE != self._ahead:
                self._ahead = index // AT_ONCE
                self._media.read_ahead(self._references[self._ahead * AT_ONCE :][:AT_ONCE])
            self._last = index, self._media.opened(self._references[index])
        return self._last[1].read(offset - self._starts[index], size)


def starts_behind(end: int, references: Sequence[Reference]) -> list[int]:
    """Return where each medium that a pack refers to begins behind the pack, and the end of the last one."""
    return list(accumulate((reference.size for reference in references), initial=end))
