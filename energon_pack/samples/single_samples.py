"""Turn members of a pack back into single samples, in the form of a source. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from energon_pack.errors import PackError
from energon_pack.samples.flavors.base import PackedFlavor
from energon_pack.samples.media.kinds import IMAGE, media_kind_by_extension
from energon_pack.samples.sample import MESSAGE_KEYS, media_type

_TIME_FIELDS = ("patch_positions", "fps", "timestamp_decimal")


class SingleSample(NamedTuple):
    """A member of a pack as a sample of a source: its JSON, and which parts of the pack are its files."""

    #: its JSON
    record: dict[str, Any]
    #: its media and their patch positions: the name in its tar → the part of the pack
    parts: dict[str, str]


def single_sample_of_member(
    flavor: PackedFlavor,
    member: Mapping[str, Any],
    names: Sequence[str],
    media: list[tuple[str, str]] | None = None,
    messages_key: str | None = None,
) -> SingleSample:
    """Turn a member of a pack back into a single sample.

    Args:
        member: the member's JSON, from the flavour's `samples`.
        names: the member's part names, from the flavour's `parts`.
        media: new name and kind of each medium; None: media keep the names that they have in the pack.
        messages_key: see `sample_json_of_member`.
    """
    packed = [name for name in names if not name.endswith(".npy")]
    new = media if media is not None else [(name, flavor.kind(name) or IMAGE.kind) for name in packed]
    arrays = {i: array for i, name in enumerate(packed) if (array := flavor.positions_part(name)) and array in names}
    called = {i: array if media is None else f"{i}.npy" for i, array in arrays.items()}
    if arrays:
        member = {**member, "patch_positions": [called.get(i, "") for i in range(len(new))]}
    elif flavor.times_in_text and any(kind == IMAGE.kind for _, kind in new):
        member = _with_source_times(member)
    parts = {name: part for (name, _), part in zip(new, packed, strict=True)}
    return SingleSample(
        sample_json_of_member(member, new, messages_key), parts | {called[i]: array for i, array in arrays.items()}
    )


def _with_source_times(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Move the fields of times to `source_times`, because the text already holds the times."""
    if not (value.get("fps") or any(value.get("patch_positions") or ())):
        return value
    times = {name: value[name] for name in _TIME_FIELDS if name in value}
    return {name: item for name, item in value.items() if name not in times} | {"source_times": times}


def sample_json_of_member(
    member: Mapping[str, Any], media: list[tuple[str, str]], messages_key: str | None = None
) -> dict[str, Any]:
    """Make the JSON of a single sample from a member's JSON in a pack.

    Args:
        media: part name and kind of each medium, in the order of the placeholders; the tar has the same order.
        messages_key: the only field in which packing looks for a conversation; None: the fields it knows.
    """
    keys = ("messages", "tools", "source_fields")
    fields = {name: value for name, value in member.items() if name not in keys}
    clashing = member.get("source_fields")
    restored = fields | clashing if isinstance(clashing, dict) else fields
    places = [messages_key] if messages_key else list(MESSAGE_KEYS)
    free = (key for key in places if key not in restored and not _other_field_is_read_first(places, key, restored))
    if (key := next(free, None)) is None:  # reading takes it for the conversation: it stays where it is
        key, restored = places[0], fields | {"source_fields": clashing}
    names = [name for name, _ in media]
    record: dict[str, Any] = {key: member["messages"], "media": media_type([kind for _, kind in media])}
    if names != [
        name for name in dict.fromkeys(names) if media_kind_by_extension(name)
    ]:  # the tar's names do not tell all media
        listing = next((name for name in ("name", "media_files") if name not in restored), None)
        if listing is None:
            raise PackError(f"media {names} have to be listed, but `name` and `media_files` are fields of the sample")
        record[listing] = names
    return record | ({"tools": member["tools"]} if "tools" in member else {}) | restored


def _other_field_is_read_first(places: list[str], key: str, fields: Mapping[str, Any]) -> bool:
    """Tell whether another field would be read as the conversation before this one."""
    return any(fields.get(earlier) for earlier in places[: places.index(key)])
