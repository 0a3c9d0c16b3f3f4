"""The base classes of flavours, the layouts of packs, and the JSON that they share. A flavour has its own file.

A flavour writes packs, and reads them for training:

    Conversation ──member_value──► a member's part of the JSON ──write──► the JSON ──members──► the members' parts
    the parts of a pack ──load──► fields of an Energon sample ──inputs──► MemberInput: what training encodes

The check of a pack asks its flavour what the JSON has to hold, so the class that writes a layout also checks it. The
last functions put references to the source in the place of copies of media, and back. Pure.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from energon_pack.errors import quote
from energon_pack.samples.media.kinds import MEDIA_TYPES
from energon_pack.samples.member import MemberInput
from energon_pack.samples.pack_tokens import CHECKSUM_FIELD, PACK_FORMAT
from energon_pack.samples.sample import (
    REFERENCES_FIELD,
    SOURCE_PARTS_FIELD,
    Message,
    Parts,
    ReadMedia,
    Reference,
    has_references,
    read_referenced,
)

#: The field with the conversations; `output.messages=false` leaves it out.
MESSAGES_FIELD = "messages"

Schema = Mapping[str, tuple[str, Callable[[Any], bool]]]


def wrong_fields(value: Any, where: str, schema: Schema) -> Iterator[str]:
    """Yield a message for each field that an object lacks or has in another type; `where`: their prefix (`_meta.`)."""
    if not isinstance(value, dict):
        yield f"{where.rstrip('.')} is {quote(value)}, not an object"
        return
    for name, (kind, is_it) in schema.items():
        if name not in value:
            yield f"no {where}{name}"
        elif not is_it(value[name]):
            yield f"{where}{name} is {quote(value[name])}, not {kind}"


def _list_checker(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(type(item) is kind for item in value)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 53


def _is_lists_of_strings(value: Any) -> bool:
    return isinstance(value, list) and all(map(_list_checker(str), value))


LIST_TYPE = ("a list", lambda value: isinstance(value, list))
NAMES_TYPE = ("a list of lists of names", _is_lists_of_strings)
TEXTS_TYPE = ("a list of lists of texts", _is_lists_of_strings)
OBJECTS_TYPE = ("a list of objects", _list_checker(dict))
COUNT_TYPE = ("a count", _is_count)
COUNTS_TYPE = ("a list of counts", lambda value: isinstance(value, list) and all(map(_is_count, value)))
_STRING_TYPE = ("a string", lambda value: isinstance(value, str))

#: The fields of `_meta` in every pack that this package writes.
META_SCHEMA: Schema = {
    "format": (str(PACK_FORMAT), lambda value: type(value) is int and value == PACK_FORMAT),
    "pack_id": _STRING_TYPE,
    "sample_ids": ("a list of strings", _list_checker(str)),
    "token_lens": COUNTS_TYPE,
    "num_supervised": COUNTS_TYPE,
    "total_token_len": COUNT_TYPE,
    "fingerprint": _STRING_TYPE,
    "source_parts": NAMES_TYPE,
    CHECKSUM_FIELD: COUNT_TYPE,
}
#: Fields of `_meta` in packs that name the media of each member.
MEDIA_SCHEMA: Schema = {
    "media_files": NAMES_TYPE,
    "media_type": (", ".join(MEDIA_TYPES), lambda value: value in MEDIA_TYPES),
}


Fields = Mapping[str, Any]


@dataclass(frozen=True)
class Conversation:
    """One member of a pack before it is written: its conversation, and the names and kinds of its media."""

    messages: list[Message]
    tools: list[Any] | None
    #: the sample's other fields, unchanged
    fields: dict[str, Any]
    #: kind and extension of each medium, in the order of their placeholders
    media: list[tuple[str, str]]
    #: for each image, whether it has patch positions; empty: no image has
    has_positions: list[bool] = field(default_factory=list)
    #: whether its images have times; `PackedFlavor.times_in_text` says whether the text or fields hold them
    is_timed: bool = False
    #: number of its first media that it shares with the member before it
    num_shared: int = 0


class Flavor(ABC):
    """A layout of samples in shards that Energon loads as one sample class."""

    name: ClassVar[str]
    #: its sample class in `energon_pack.flavors`
    sample_class: ClassVar[str]
    #: the subflavor `sample_type`, by which cookers select samples
    subflavor: ClassVar[str]
    #: the function that fills another stack's sample class, in the file of sample_loaders/ with the flavour's name
    loader: ClassVar[str] = "sample_loader"

    @abstractmethod
    def inputs(self, sample: Any) -> Iterator[MemberInput]:
        """Yield the members of an Energon sample; raises Skip if a member's conversation can't be read."""


class PackedFlavor(Flavor):
    """A layout of packs: names their parts, makes and reads their JSON, and tells which samples fit."""

    #: fields of the JSON, and fields that it may lack; each list has an entry for each member
    schema: ClassVar[Schema]
    optional: ClassVar[tuple[str, ...]] = ()
    #: fields of its `_meta`
    meta: ClassVar[Schema]
    #: a medium's file has the extension of its content
    names_content: ClassVar[bool] = True
    #: True: the times of images are written into the text; False: they stay fields, and patch positions are parts
    times_in_text: ClassVar[bool] = True
    #: the field that names media; `media_refs` replaces it in packs without copies of media
    media_field: ClassVar[str] = "media_files"
    #: of `fit.FIT_RULES`: what packs can't hold
    rules: ClassVar[tuple[str, ...]] = ()
    #: fields that sample_loader.py fills in another stack's sample class; empty: this package's own class is filled
    gives: ClassVar[tuple[str, ...]] = ()

    @property
    def holder(self) -> str:
        """The setting that messages name if a sample does not fit, such as `output.flavor=packed_captioning`."""
        return "the class of output.sample_type" if self.gives else f"output.flavor={self.name}"

    def unfit(self, answers: Mapping[str, str | None]) -> str | None:
        """Return a sample's content that this flavour can't hold, such as "tools"; None: it can hold the sample.

        `answers`: what `fit.contents_forbidden_by_flavor_rules` returned for the sample.
        """
        return next(filter(None, map(answers.__getitem__, self.rules)), None)

    @abstractmethod
    def part_names(self, index: int, media: Sequence[tuple[str, str]]) -> list[str]:
        """Return part names for the media (kind and extension of each) of the member with this index in the pack."""

    def all_part_names(
        self, members: Sequence[Sequence[tuple[str, str]]], num_shared: Sequence[int]
    ) -> list[list[str]]:
        """Return part names for the media of all members.

        `num_shared`: how many of its first media each member shares; these keep the names of the member before it.
        """
        names: list[list[str]] = []
        for index, (media, num) in enumerate(zip(members, num_shared, strict=True)):
            names.append([*(names[-1][:num] if num else ()), *self.part_names(index, media)[num:]])
        return names

    def positions_part(self, image: str) -> str | None:
        """Return the name of the part with an image's patch positions; None: this flavour has no such parts."""
        return None

    @abstractmethod
    def kind(self, part: str) -> str | None:
        """Return the kind of a medium by the name of its part; None: the part is no medium."""

    @abstractmethod
    def write(self, conversations: Sequence[Conversation], meta: Fields) -> dict[str, Any]:
        """Make the JSON of a pack; `meta`: its field `_meta`."""

    @abstractmethod
    def member_value(self, index: int, conversation: Conversation) -> dict[str, Any]:
        """Make one member's share of a pack's JSON, in the form that `members` returns."""

    @abstractmethod
    def members(self, value: Fields) -> list[dict[str, Any]]:
        """Split the JSON of a pack into one object for each member; raises KeyError if fields are missing.

        An object has the fields that `messages` reads; it may also have `tools` and `video_frames`.
        """

    @abstractmethod
    def parts(self, value: Fields) -> list[list[str]]:
        """Return each member's part names from a pack's JSON, in the order of writing; raises KeyError as `members`."""

    def media_names(self, parts: Sequence[list[str]]) -> list[list[str]]:
        """Return the value of the JSON's field `media_field`; `parts`: each member's part names."""
        return list(parts)

    def fields(self, member: Fields) -> Fields:
        """Return the fields of a member's source sample, including its options (weight, media settings …)."""
        return member

    def messages(self, member: Fields, positions: Sequence[Any] = ()) -> list[Message]:
        """Return the messages of a member, one of the objects that `members` returns.

        `positions`: each image's patch positions, from which times are written into the text; empty: write none.
        """
        messages: list[Message] = member["messages"]
        return messages

    def samples(self, value: Fields) -> list[dict[str, Any]]:
        """Return each member as the JSON of a separate sample, in the form of `sample_json`; media are not named."""
        return self.members(value)

    @abstractmethod
    def load(self, parts: Parts, value: Fields) -> dict[str, Any]:
        """Make the fields of the sample class from the parts of a pack (content by name) and its JSON.

        A missing image raises an `OSError` with its name only when its pixels or size are read. A missing video is
        empty. So a missing file costs one member, not the pack.
        """

    def measured(self, sample: Any, index: int) -> tuple[str, int | None]:
        """Return a member's id and its measured length in tokens; without them, an id by its index, and None."""
        sample_id = sample.sample_ids[index] if sample.sample_ids else f"{sample.__key__}#{index}"
        return sample_id, sample.token_lens[index] if sample.token_lens else None

    def defects(self, fields: Fields) -> Iterator[str]:
        """Yield a message for each contradiction between a pack's fields, each of which alone is valid."""
        return iter(())


def sample_json(conversation: Conversation) -> dict[str, Any]:
    """Return a conversation as a sample's JSON: messages, tools and other fields.

    A field with a name that is used already (`messages`, `tools`, `source_fields`) goes under `source_fields`.
    """
    value: dict[str, Any] = {"messages": conversation.messages}
    if conversation.tools:
        value["tools"] = conversation.tools
    used = ("messages", "tools", "source_fields")
    clashing = {name: item for name, item in conversation.fields.items() if name in used}
    value |= {name: item for name, item in conversation.fields.items() if name not in used}
    return value | ({"source_fields": clashing} if clashing else {})


def _is_source_place(value: Any) -> bool:
    """Tell whether a value is `[shard, offset, size]`, `[path]` or `[path, key]`."""
    names, numbers = (value[:1], value[1:]) if isinstance(value, list) and len(value) == 3 else (value, [])
    return _list_checker(str)(names) and 0 < len(names) < 3 and all(map(_is_count, numbers))


def _is_name_size_checksum(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 3 and isinstance(value[0], str) and all(map(_is_count, value[1:]))


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
        ("_meta.sample_ids", ids, ("a list of strings", _list_checker(str))),
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
