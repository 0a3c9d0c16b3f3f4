"""Writes and checks the JSON of packs without copies of media: see `samples.parts.Reference`. Pure."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from energon_pack.errors import quote
from energon_pack.samples.flavors.base import Fields, PackedFlavor
from energon_pack.samples.flavors.schema import is_count, list_checker
from energon_pack.samples.parts import (
    REFERENCES_FIELD,
    SOURCE_PARTS_FIELD,
    Parts,
    ReadMedia,
    Reference,
    has_references,
    read_referenced,
)


def _is_source_place(value: Any) -> bool:
    """Tell whether a value is `[shard, offset, size]`, `[path]` or `[path, key]`."""
    names, numbers = (value[:1], value[1:]) if isinstance(value, list) and len(value) == 3 else (value, [])
    return list_checker(str)(names) and 0 < len(names) < 3 and all(map(is_count, numbers))


def _is_name_size_checksum(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 3 and isinstance(value[0], str) and all(map(is_count, value[1:]))


def _is_list_of_lists_of(is_it: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def are_all(items: Any) -> bool:
        return isinstance(items, list) and all(map(is_it, items))

    return lambda value: isinstance(value, list) and all(map(are_all, value))


def with_references(pack_json: Fields, flavor: PackedFlavor, members: Sequence[Sequence[Reference]]) -> dict[str, Any]:
    """Turn the JSON of a pack with copies of media into one with each member's references to the source."""
    refs = [[list(part.place) for part in parts] for parts in members]
    stated = [[[part.name, part.size, part.checksum] for part in parts] for parts in members]
    fields = {REFERENCES_FIELD if name == flavor.media_field else name: item for name, item in pack_json.items()}
    return {**fields, REFERENCES_FIELD: refs, "_meta": {**pack_json["_meta"], SOURCE_PARTS_FIELD: stated}}


def without_references(pack_json: Fields, flavor: PackedFlavor) -> dict[str, Any]:
    """Turn the JSON of a pack with references back into that of a pack with copies of media."""
    names = [[part[0] for part in parts] for parts in pack_json["_meta"][SOURCE_PARTS_FIELD]]
    return {
        flavor.media_field if name == REFERENCES_FIELD else name: flavor.media_names(names)
        if name == REFERENCES_FIELD
        else item
        for name, item in pack_json.items()
    }


def reference_defects(pack_json: Fields) -> Iterator[str]:
    """Yield a message for each reason why the references in a pack's JSON can't be read."""
    meta = pack_json["_meta"] if isinstance(pack_json.get("_meta"), dict) else {}
    refs, parts, ids = pack_json[REFERENCES_FIELD], meta.get(SOURCE_PARTS_FIELD), meta.get("sample_ids")
    for name, listed, (said_kind, is_it) in (
        (REFERENCES_FIELD, refs, ("a list of lists of places in the source", _is_list_of_lists_of(_is_source_place))),
        (
            f"_meta.{SOURCE_PARTS_FIELD}",
            parts,
            ("a list of lists of a name, a size and a checksum", _is_list_of_lists_of(_is_name_size_checksum)),
        ),
        ("_meta.sample_ids", ids, ("a list of strings", list_checker(str))),
    ):
        if not is_it(listed):
            yield f"{name} is {quote(listed)}, not {said_kind}"
            return
    if not len(refs) == len(parts or ()) == len(ids or ()) or any(map(_are_of_other_media, refs, parts or ())):
        yield f"{REFERENCES_FIELD} and _meta.{SOURCE_PARTS_FIELD} are not of the same media"


def _are_of_other_media(refs: list[Any], parts: list[Any]) -> bool:
    return len(refs) != len(parts) or any(len(r) == 3 and r[2] != p[1] for r, p in zip(refs, parts, strict=True))


def with_referenced_parts(
    parts: Parts, pack_json: Fields, flavor: PackedFlavor, read: ReadMedia
) -> tuple[Parts, Fields]:
    """Return parts and JSON as in a pack with copies of media; `read` gets the parts that are only in the source."""
    if not has_references(pack_json):
        return parts, pack_json
    return {**parts, **read_referenced(parts, pack_json, read)}, without_references(pack_json, flavor)
