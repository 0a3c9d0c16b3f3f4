"""Reads the parts of an Energon sample, which are bytes or already decoded."""

import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from energon_pack.run.plain_data import json_value
from energon_pack.samples.media.kinds import AUDIO, IMAGE, KINDS, format_of, kind_by_name
from energon_pack.samples.media.medium import SOUNDS_LIKE
from energon_pack.samples.skip import Skip

REFS, PARTS = "media_refs", "media_parts"


Parts = Mapping[str, Any]


def json_of(part: Any) -> Any:
    return json_value(part) if isinstance(part, (bytes, str)) else part


def medium_of(parts: Parts, name: str, kind: str) -> Any:
    """Return a medium of a pack in the form that training gets: see `Medium.loaded`."""
    return KINDS[kind].loaded(parts.get(name), f"{parts.get('__key__')}.{name}")


def media_by_kind(parts: Parts, media: Sequence[tuple[str, str]]) -> dict[str, list[Any]]:
    """Return the media of a sample by kind."""
    return {kind: [medium_of(parts, name, its_kind) for name, its_kind in media if its_kind == kind] for kind in KINDS}


def kind_of(parts: Parts, name: str) -> str:
    """Tell the kind of a part by its content, or by its name if the part is missing or already decoded.

    Its streams say whether it is a video or a sound; if they can't be read, whoever decodes it says so.
    """
    value, named = parts.get(name), kind_by_name(name) or IMAGE.kind
    if not isinstance(value, bytes):
        return named
    container = format_of(value[:16])
    if container is not None and container.extension in SOUNDS_LIKE:
        if named == AUDIO.kind:
            return named
        from energon_pack.samples.media.stream_probe import is_sound

        with suppress(Skip):
            return AUDIO.kind if is_sound(io.BytesIO(value)) else container.kind
    return container.kind if container else IMAGE.kind


def positions_of(part: Any) -> Any:
    """Return the array of a .npy part."""
    return np.load(io.BytesIO(part), allow_pickle=False) if isinstance(part, bytes) else part


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
