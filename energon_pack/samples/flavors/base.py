"""What a flavour is. A class each, in a file of its own; `__init__` lists them.

    Conversation ──member_value──► what the JSON has of a member ──write──► the JSON ──members──► the same
    the parts of a pack ──load──► fields of an Energon sample ──inputs──► MemberInput: what training encodes

Whoever checks a pack asks its flavour what its JSON has to hold: what is written and what is expected stand in one
class. Pure.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from energon_pack.samples.flavors.parts import Parts
from energon_pack.samples.flavors.schema import Schema
from energon_pack.samples.options import NO_OPTIONS, SampleOptions
from energon_pack.samples.sample import Message

Fields = Mapping[str, Any]


@dataclass(frozen=True)
class Conversation:
    """One member of a pack, as it is written."""

    messages: list[Message]
    tools: list[Any] | None
    #: the sample's other fields, untouched
    fields: dict[str, Any]
    #: kind and extension of each medium, in the order of their placeholders
    media: list[tuple[str, str]]
    #: whether each image has patch positions; empty: none has
    has_positions: list[bool] = field(default_factory=list)
    #: whether its images have times: in the text or in fields, by `PackedFlavor.times_in_text`
    is_timed: bool = False


@dataclass(frozen=True)
class MemberInput:
    """One member of a pack, or an unpacked sample, as training gets it: not yet encoded."""

    sample_id: str
    messages: list[Message]
    images: Sequence[Any] = ()
    videos: Sequence[bytes] = ()
    tools: list[Any] | None = None
    video_frames: Any = None
    #: as it was measured; None: it was not
    token_len: int | None = None
    options: SampleOptions = NO_OPTIONS


class Flavor(ABC):
    """What Energon loads as one sample class."""

    name: ClassVar[str]
    #: its sample class in `energon_pack.flavors`
    sample_class: ClassVar[str]
    #: the subflavor `sample_type` that cookers select by
    subflavor: ClassVar[str]

    @abstractmethod
    def inputs(self, sample: Any) -> Iterator[MemberInput]:
        """The members of an Energon sample; raises Skip where the conversation of one can't be told."""


class PackedFlavor(Flavor):
    """How packs are written and read: the names of their parts, their JSON, and what has a place in it."""

    #: fields of the JSON, and those of them that it may lack; what is a list has an entry for each member
    schema: ClassVar[Schema]
    optional: ClassVar[tuple[str, ...]] = ()
    #: fields of its `_meta`
    meta: ClassVar[Schema]
    #: another tool that writes it, and what it calls it; "": this package, to the letter
    whose: ClassVar[str] = ""
    #: of another tool's: fields whose presence tells that its JSON is one
    told_by: ClassVar[tuple[str, ...]] = ()
    #: the extension of a medium is that of its content
    names_content: ClassVar[bool] = True
    #: times of images are written into the text; False: they stay fields, and patch positions are parts
    times_in_text: ClassVar[bool] = True
    #: the field that names media; in packs without them `media_refs` takes its place
    media_field: ClassVar[str] = "media_files"
    #: fields of another stack's sample class that its sample_loader.py fills
    gives: ClassVar[tuple[str, ...]] = ()
    #: which of several classes with other fields that is; its loader's file is named by it. "": the flavour's first
    form: ClassVar[str] = ""

    @property
    def form_name(self) -> str:
        """What tells a form of a flavour from all others."""
        return self.form or self.name

    @property
    def is_ours(self) -> bool:
        return not self.whose

    def does_not_fit(self, messages: Sequence[Message], tools: list[Any] | None, kinds: Sequence[str]) -> str | None:
        """Say what of a sample has no place in packs of this flavour; None: all of it has one."""
        return None

    @abstractmethod
    def part_names(self, index: int, media: Sequence[tuple[str, str]]) -> list[str]:
        """Name the media (kind and extension) of the member at a place in the pack."""

    def positions_part(self, image: str) -> str | None:
        """Name the part with the patch positions of an image; None: this flavour has no such parts."""
        return None

    @abstractmethod
    def kind(self, part: str) -> str | None:
        """Tell `image` or `video` by the name of a part; None: neither."""

    @abstractmethod
    def write(self, conversations: Sequence[Conversation], meta: Fields) -> dict[str, Any]:
        """Make the JSON of a pack."""

    @abstractmethod
    def member_value(self, index: int, conversation: Conversation) -> dict[str, Any]:
        """Make what the JSON has of one member, as `members` returns it."""

    @abstractmethod
    def members(self, value: Fields) -> list[dict[str, Any]]:
        """Take from the JSON of a pack what it has of each member; raises KeyError where that can't be told.

        Beside what `messages` reads, a member may hold `tools` and `video_frames`, as samples do.
        """

    @abstractmethod
    def parts(self, value: Fields) -> list[list[str]]:
        """Take from the JSON of a pack the parts of each member, in the order of writing; raises as `members`."""

    def media_names(self, parts: Sequence[list[str]]) -> list[list[str]]:
        """What `media_field` holds for these `parts`."""
        return list(parts)

    def fields(self, member: Fields) -> Fields:
        """The other fields of the sample that one of `members` was: what it asks for is among them."""
        return member

    def messages(self, member: Fields, positions: Sequence[Any] = ()) -> list[Message]:
        """The conversation of one of `members`.

        Args:
            positions: the array of each image, for the times that are not in the text; none: without these.
        """
        messages: list[Message] = member["messages"]
        return messages

    def samples(self, value: Fields) -> list[dict[str, Any]]:
        """The JSON of each member as a sample of its own: what `sample_value` makes of it, without its media."""
        return self.members(value)

    @abstractmethod
    def load(self, parts: Parts, value: Fields) -> dict[str, Any]:
        """The fields of the sample class, from the parts of a pack and its JSON.

        A missing image is an `OSError` with its name when its pixels or size are asked for, a missing video is empty:
        a fault of one member, not of the pack.

        Raises:
            Skip: a member of another tool's pack is no conversation, or has other media than placeholders.
        """

    def measured(self, sample: Any, index: int) -> tuple[str, int | None]:
        """The id and the measured length of a member of an Energon sample; another tool's may have neither."""
        sample_id = sample.sample_ids[index] if sample.sample_ids else f"{sample.__key__}#{index}"
        return sample_id, sample.token_lens[index] if sample.token_lens else None

    def defects(self, fields: Fields) -> Iterator[str]:
        """Say how fields, each of which is what it should be, contradict one another."""
        return iter(())

    def unread(self, fields: Fields) -> Iterator[str]:
        """Say why the loader of the stack that writes it can't read a pack of such fields."""
        return iter(())


def sample_value(conversation: Conversation) -> dict[str, Any]:
    """Messages and other fields; one whose name a sample itself uses is under `source_fields`."""
    value: dict[str, Any] = {"messages": conversation.messages}
    if conversation.tools:
        value["tools"] = conversation.tools
    used = ("messages", "tools", "source_fields")
    clashing = {name: item for name, item in conversation.fields.items() if name in used}
    value |= {name: item for name, item in conversation.fields.items() if name not in used}
    return value | ({"source_fields": clashing} if clashing else {})
