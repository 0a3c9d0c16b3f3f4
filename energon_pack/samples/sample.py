"""The parts of one sample, in a source or as Energon has them, and the kinds of its media, independent of any model."""

import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from energon_pack.run.untrusted_input import parse_json
from energon_pack.samples.media.kinds import AUDIO, IMAGE, KINDS, find_media_format, media_kind_by_extension
from energon_pack.samples.media.medium import SOUND_EXTENSION_OF
from energon_pack.samples.skip import Skip

Message = dict[str, Any]
#: the keys under which a message may have its role, and its content
ROLE_KEYS, CONTENT_KEYS = ("role", "from"), ("content", "value")
#: the keys under which a message may have its reasoning, the standard one first
REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
#: these, and the one under which Cohere's data have it
THOUGHT_KEYS = (*REASONING_KEYS, "tool_plan")
#: the keys under which a tool call may have its arguments, the standard one first
ARGUMENT_KEYS = ("arguments", "parameters", "args", "input", "action_input")
#: keys of a record that hold its turns
MESSAGE_KEYS = ("messages", "conversations", "texts")


class Part(NamedTuple):
    """One file of a sample: its offset and size in the shard, or in the separate file that its name names."""

    name: str
    offset: int
    size: int


class MediaPart(NamedTuple):
    """A part that is a medium, with its kind and extension by its content."""

    name: str
    offset: int
    size: int
    kind: str  # of `media.kinds.KINDS`
    extension: str  # extension of the content


AnyPart = Part | MediaPart


def guess_media_type_by_names(part_names: Sequence[str]) -> str | None:
    """Guess the media type of a sample by the names of its parts: a kind, or `mix` for several; None: no media."""
    kinds = [kind for name in part_names if (kind := media_kind_by_extension(name))]
    return media_type(kinds) if kinds else None


def media_type(kinds: Sequence[str]) -> str:
    """Return the media type of a sample with media of these kinds: `text`, the one kind, or `mix` for several."""
    present = set(kinds)
    return present.pop() if len(present) == 1 else ("mix" if present else "text")


REFERENCES_FIELD, SOURCE_PARTS_FIELD = "media_refs", "media_parts"
Parts = Mapping[str, Any]  # of an Energon sample: bytes or already decoded


def parse_json_part(part: Any) -> Any:
    return parse_json(part) if isinstance(part, (bytes, str)) else part


def medium_of(parts: Parts, name: str, kind: str) -> Any:
    """Return the medium in the part `name` as training gets it: bytes, or decoded (see `Medium.loaded`)."""
    return KINDS[kind].loaded(parts.get(name), f"{parts.get('__key__')}.{name}")


def media_by_kind(parts: Parts, media: Sequence[tuple[str, str]]) -> dict[str, list[Any]]:
    """Return a sample's media, in a list for each kind. `media`: part name and kind of each medium."""
    return {kind: [medium_of(parts, name, its_kind) for name, its_kind in media if its_kind == kind] for kind in KINDS}


def media_kind_of_part(parts: Parts, part_name: str) -> str:
    """Return the kind of a medium by its content, or by its name if the part is missing or already decoded.

    A container that may hold a sound alone is opened; if that fails, it counts as the container's usual kind.
    """
    value, named = parts.get(part_name), media_kind_by_extension(part_name) or IMAGE.kind
    if not isinstance(value, bytes):
        return named
    container = find_media_format(value[:16])
    if container is not None and container.extension in SOUND_EXTENSION_OF:
        if named == AUDIO.kind:
            return named
        from energon_pack.samples.media.stream_probe import is_container_without_pictures

        with suppress(Skip):
            return AUDIO.kind if is_container_without_pictures(io.BytesIO(value)) else container.kind
    return container.kind if container else IMAGE.kind


def patch_positions_of(part: Any) -> Any:
    """Return the patch positions in a .npy part, bytes or already an array: integers [patches, 3]."""
    return np.load(io.BytesIO(part), allow_pickle=False) if isinstance(part, bytes) else part


class Reference(NamedTuple):
    """The place in the source of a file that a pack does not copy: a medium, or an image's patch positions (.npy)."""

    name: str  # name that the part has in a pack with copies
    place: tuple[str | int, ...]  # (shard, offset, size), (path of a file), or (path of an LMDB, key)
    size: int
    checksum: int  # `sources.media_files.EndBytes.checksum` of it when it was packed
    sample: str  # id of the member that it belongs to


#: Takes the parts that a pack itself has, and reads its other parts from the source.
ReadMedia = Callable[[Sequence[Reference], Parts], list[bytes]]


def has_references(pack_json: Mapping[str, Any]) -> bool:
    """Tell whether a pack refers to media in its source (`output.media=reference`); `pack_json`: its JSON."""
    return REFERENCES_FIELD in pack_json


def references_by_member(pack_json: Mapping[str, Any]) -> list[list[Reference]]:
    """Return each member's references from a pack's JSON, in the order in which packing wrote them."""
    meta = pack_json["_meta"]
    members = zip(pack_json[REFERENCES_FIELD], meta[SOURCE_PARTS_FIELD], meta["sample_ids"], strict=True)
    return [
        [Reference(name, tuple(place), size, checksum, sample) for place, (name, size, checksum) in pairs]
        for pairs, sample in ((zip(refs, parts, strict=True), sample) for refs, parts, sample in members)
    ]


def read_referenced(parts: Parts, pack_json: Mapping[str, Any], read: ReadMedia) -> dict[str, bytes]:
    """Read with `read` the parts that a pack's JSON refers to and `parts` lacks; return their bytes by part name."""
    named = {part.name: part for member in references_by_member(pack_json) for part in member}  # media may be shared
    missing = [part for name, part in named.items() if name not in parts]
    return dict(zip([part.name for part in missing], read(missing, parts), strict=True))
