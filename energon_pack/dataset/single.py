"""Turn members of a pack back into single samples, in the form of a source. Pure."""

from collections.abc import Mapping
from typing import Any

from energon_pack.dataset.contents import Pack
from energon_pack.dataset.plan_rows import PlanRow
from energon_pack.errors import PackError
from energon_pack.samples.media.formats import kind_by_name
from energon_pack.samples.media.kinds import IMAGE
from energon_pack.samples.sample import MESSAGE_KEYS, Part, media_type
from energon_pack.sources.jsonl.index import LINE

_TIMES = ("patch_positions", "fps", "timestamp_decimal")


def singles(
    pack: Pack, members: list[PlanRow], messages_key: str | None = None
) -> list[tuple[dict[str, Any], dict[str, Part]]]:
    """Return each member of a whole pack: its JSON, and its parts' places in the packed shard, by their new names.

    Raises:
        PackError: as `record_of`.
    """
    found = []
    for member, value, names in zip(members, pack.flavor.samples(pack.fields), pack.names, strict=True):
        media = _new_names(member)
        parts = {name: pack.parts[packed] for (name, _), packed in zip(media, names, strict=True)}
        arrays = {i: part for i, name in enumerate(names) if (part := pack.positions(name))}
        if arrays:
            value = {**value, "patch_positions": [f"{i}.npy" * (i in arrays) for i in range(len(media))]}
            parts |= {f"{i}.npy": part for i, part in arrays.items()}
        elif pack.flavor.times_in_text and any(kind == IMAGE.kind for _, kind in media):
            value = _without_times(value)
        found.append((record_of(value, media, messages_key), parts))
    return found


def _without_times(value: dict[str, Any]) -> dict[str, Any]:
    """Return a member with its times in the text; their origin gets a name that is not read a second time."""
    if not (value.get("fps") or any(value.get("patch_positions") or ())):
        return value
    times = {name: value[name] for name in _TIMES if name in value}
    return {name: item for name, item in value.items() if name not in times} | {"source_times": times}


def _new_names(member: PlanRow) -> list[tuple[str, str]]:
    """Return part and kind of each medium: as in its tar; media of a JSONL line, whose names are paths, get numbers."""
    if member.record_part != LINE:
        return [(part.name, part.kind) for part in member.parts]
    return [(f"{number}.{part.extension}", part.kind) for number, part in enumerate(member.parts)]


def record_of(
    member: Mapping[str, Any], media: list[tuple[str, str]], messages_key: str | None = None
) -> dict[str, Any]:
    """Return the JSON of a sample in its canonical form, made from a member's JSON in a pack.

    Args:
        media: part and kind of each, in the order of the placeholders, which is also their order in the tar.
        messages_key: the only field in which packing looks for a conversation; None: the fields it knows.

    Raises:
        PackError: its media have to be listed, and fields of its own have the lists' names.
    """
    own = ("messages", "tools", "source_fields")
    fields = {name: value for name, value in member.items() if name not in own}
    clashing = member.get("source_fields")
    restored = fields | clashing if isinstance(clashing, dict) else fields
    places = [messages_key] if messages_key else list(MESSAGE_KEYS)
    found = (key for key in places if key not in restored and not _is_before(places, key, restored))
    if (key := next(found, None)) is None:  # reading takes it for the conversation: it stays where it is
        key, restored = places[0], fields | {"source_fields": clashing}
    names = [name for name, _ in media]
    record: dict[str, Any] = {key: member["messages"], "media": media_type([kind for _, kind in media])}
    if names != [name for name in dict.fromkeys(names) if kind_by_name(name)]:  # the tar's names do not tell all media
        listing = next((name for name in ("name", "media_files") if name not in restored), None)
        if listing is None:
            raise PackError(f"media {names} have to be listed, but `name` and `media_files` are fields of the sample")
        record[listing] = names
    return record | ({"tools": member["tools"]} if "tools" in member else {}) | restored


def _is_before(places: list[str], key: str, fields: Mapping[str, Any]) -> bool:
    """Say whether reading would take another field than this one for the conversation."""
    return any(fields.get(earlier) for earlier in places[: places.index(key)])
