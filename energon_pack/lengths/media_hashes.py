"""Hashes the content of media, so that samples with the same image are found whatever it is called."""

from collections.abc import Sequence
from hashlib import blake2b

from energon_pack.run.lru_cache import LruCache
from energon_pack.samples.media.medium import Media
from energon_pack.samples.sample import MediaPart
from energon_pack.sources.reader import Reader
from energon_pack.sources.shard import Shard

_MAX_HASHES = 10_000  # media whose hashes are held


def can_share_beginning(media: Sequence[Media]) -> bool:
    """Tell whether samples with these media may share a beginning: none is a sound, or a video as a list of frames."""
    return all(medium.is_seen and not (medium.settings and medium.settings.list_of_frames) for medium in media)


class MediaHashes:
    """Reads media whole and hashes their bytes; caches the hashes of the last 10,000 media."""

    def __init__(self, reader: Reader):
        self._reader = reader
        self._known: LruCache[tuple[str, MediaPart], bytes] = LruCache(_MAX_HASHES)

    def of_media(
        self, shard: Shard, parts: Sequence[MediaPart], media: Sequence[Media]
    ) -> list[tuple[str, bytes]] | None:
        """Return the kind of each medium of a sample, and a 16-byte hash over its bytes, size and settings.

        Returns:
            None if a video is a list of frames, or a medium is a sound: beginnings of such a sample are never shared.
        """
        if not can_share_beginning(media):
            return None
        return [
            (medium.kind, blake2b(self._content(shard, part) + repr(medium).encode(), digest_size=16).digest())
            for part, medium in zip(parts, media, strict=True)
        ]

    def of_first_medium(self, shard: Shard, parts: Sequence[MediaPart]) -> int | None:
        """Return 64 bits of the hash of the first medium's bytes, as an int; None: the sample has no media."""
        return int.from_bytes(self._content(shard, parts[0])[:8], "little") if parts else None

    def _content(self, shard: Shard, part: MediaPart) -> bytes:
        key = shard.path, part
        if (known := self._known.get(key)) is not None:
            return known
        data = self._reader.part_file(shard, part).read(part.offset, part.size)
        return self._known.put(key, blake2b(data, digest_size=16).digest())
