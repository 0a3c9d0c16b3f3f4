"""Packs without copies of media: their JSON says where each medium lies in the source, with its checksum.

    {"media_refs": [[["a.tar", 1536, 48211]]], "_meta": {"media_parts": [[["s000.i00.jpg", 48211, 230973]]], …}, …}

`media_refs` replaces the field that names media, so that a reader that knows only copies fails at once. After the names
are put back, the pack is read like a pack with copies. Pure.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from energon_pack.samples.parts import Parts

REFS, PARTS = "media_refs", "media_parts"


class Reference(NamedTuple):
    """The place in the source where a pack's medium lies, or an array beside a medium."""

    name: str  # name that the part has in a pack with copies
    place: tuple[str | int, ...]  # (shard, offset, size), (path of a file), or (path of an LMDB, key)
    size: int
    checksum: int  # `sources.referenced.checksum` of its bytes when it was packed
    sample: str  # id of the member that it belongs to


#: Takes the parts that a pack itself has, and reads its other parts from the source.
ReadMedia = Callable[[Sequence[Reference], Parts], list[bytes]]


def has_references(value: Mapping[str, Any]) -> bool:
    """Tell whether the media of a pack lie in its source."""
    return REFS in value


def references_of(value: Mapping[str, Any]) -> list[list[Reference]]:
    """Return the references of each member, in the order of writing."""
    meta = value["_meta"]
    members = zip(value[REFS], meta[PARTS], meta["sample_ids"], strict=True)
    return [
        [Reference(name, tuple(place), size, checksum, sample) for place, (name, size, checksum) in pairs]
        for pairs, sample in ((zip(refs, parts, strict=True), sample) for refs, parts, sample in members)
    ]


def read_missing(parts: Parts, value: Mapping[str, Any], read: ReadMedia) -> dict[str, bytes]:
    """Read the parts that a pack refers to, and does not hold, from the source."""
    named = {part.name: part for member in references_of(value) for part in member}  # members may share media
    missing = [part for name, part in named.items() if name not in parts]
    return dict(zip([part.name for part in missing], read(missing, parts), strict=True))
