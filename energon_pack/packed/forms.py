"""The forms a pack's JSON has, by who wrote it: what it has to hold, and what it means.

All checks ask a form; none asks for the flavour.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from energon_pack.findings import short
from energon_pack.manifest import FORMAT
from energon_pack.packs import (
    CAPTIONING,
    CAPTIONING_COLUMNS,
    MULTI_MIX_QA,
    media_names,
    member_values,
    messages_of,
    timed_messages,
)
from energon_pack.sample import Message, media_type
from energon_pack.samples.media.formats import kind_by_name

Schema = Mapping[str, tuple[str, Callable[[Any], bool]]]
Fields = Mapping[str, Any]

_KINDS = {"i": "image", "v": "video"}
#: `s003.i00.jpg`
NAME = re.compile(r"s(\d{3,})\.([iv])(\d{2,})\.[a-z0-9]+")


def is_list_of(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(type(item) is kind for item in value)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 53


def _is_counts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_count, value))


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_list_of(str), value))


def _is_string(value: Any) -> bool:
    return isinstance(value, str)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


_NAMES = ("a list of lists of names", _is_names)
_TEXTS = ("a list of lists of texts", _is_names)
_OBJECTS = ("a list of objects", is_list_of(dict))
_MEDIA_TYPE = ("text, image, video or mix", lambda value: value in ("text", "image", "video", "mix"))
_META: Schema = {
    "format": (str(FORMAT), lambda value: type(value) is int and value == FORMAT),
    "pack_id": ("a string", _is_string),
    "sample_ids": ("a list of strings", is_list_of(str)),
    "token_lens": ("a list of counts", _is_counts),
    "num_supervised": ("a list of counts", _is_counts),
    "total_token_len": ("a count", _is_count),
    "fingerprint": ("a string", _is_string),
    "source_parts": _NAMES,
}


@dataclass(frozen=True)
class Form:
    """One kind of JSON."""

    flavor: str
    #: field → what it is, and how to tell
    fields: Schema
    #: fields that may be missing
    optional: Schema = field(default_factory=dict)
    meta: Schema = field(default_factory=dict)
    #: fields with an entry for each member
    lists: tuple[str, ...] = ()
    #: who writes it; "": this package, to the letter
    whose: str = ""
    #: fields that tell the members, and those that tell their parts
    for_members: ClassVar[tuple[str, ...]] = ("messages",)
    for_names: ClassVar[tuple[str, ...]] = ("media_files",)
    #: the extension of a medium is that of its content
    names_content: ClassVar[bool] = True

    @property
    def is_ours(self) -> bool:
        return not self.whose

    def has(self, fields: Fields, wanted: tuple[str, ...]) -> bool:
        """Whether it has those of the wanted fields that it has to have."""
        return self.fields.keys() & set(wanted) <= fields.keys()

    def members(self, fields: Fields) -> list[dict[str, Any]]:
        """Of each member what the JSON has of it."""
        return member_values(self.flavor, fields)

    def messages(self, value: Fields, positions: Sequence[Any] = ()) -> list[Message]:
        """The conversation of one of these.

        Args:
            positions: the array of each image, for the times that are not in the text; none: without these.
        """
        return timed_messages(self.flavor, value, positions)

    def names(self, fields: Fields) -> list[list[str]]:
        """The parts of each member, in the order of writing."""
        return media_names(self.flavor, fields)

    def kind(self, name: str) -> str | None:
        """image or video, by the name of a part; None: neither."""
        match = NAME.fullmatch(name)
        return _KINDS[match[2]] if match else None

    def defects(self, fields: Fields) -> Iterator[str]:
        """What is wrong with good fields."""
        if {"media_files", "media_type"} <= fields.keys():
            kinds = [kind for names in self.names(fields) for name in names if (kind := self.kind(name))]
            if fields["media_type"] != media_type(kinds):
                yield f"media_type is {fields['media_type']}, its media make it {media_type(kinds)}"

    def unread(self, fields: Fields) -> Iterator[str]:
        """Why the loader of the stack that writes it can't read a pack of good fields."""
        return iter(())


class Captioning(Form):
    """LLaVA-OneVision-2's JSON, with `_meta` or, as its own tools write it, without."""

    for_members = ("images", "prompts", "captions")
    for_names = ("images", "patch_positions")
    names_content = False  # all are .jpg

    def members(self, fields: Fields) -> list[dict[str, Any]]:
        turns = {name: [[t] if isinstance(t, str) else t for t in fields[name]] for name in ("prompts", "captions")}
        return super().members({**fields, **turns})

    def messages(self, value: Fields, positions: Sequence[Any] = ()) -> list[Message]:
        num_images = 0 if self.is_ours else len(value["images"])  # theirs may leave placeholders out
        return timed_messages(self.flavor, value, positions, num_images)

    def kind(self, name: str) -> str | None:
        return "image" if name.endswith(".jpg") else None

    def defects(self, fields: Fields) -> Iterator[str]:
        if {"sample_count", "images"} <= fields.keys() and fields["sample_count"] != len(fields["images"]):
            yield f"sample_count is {fields['sample_count']}, it has {len(fields['images'])} members"
        if not self.has(fields, self.for_members):
            return
        for number, value in enumerate(self.members(fields)):
            prompts, captions = (len(value[name] or ()) for name in ("prompts", "captions"))
            if prompts != captions or not prompts:
                yield f"member {number} has {prompts} prompts and {captions} captions"
            positions, num_images = value["patch_positions"], len(value["images"] or ())
            if positions is not None and (self.is_ours or positions) and len(positions) != num_images:
                yield f"member {number} has {num_images} images and {len(positions)} patch_positions"
            if self.is_ours:
                stems = [f"img{number:03d}_sub{i:03d}" for i in range(num_images)]
                wrong = [name for name, stem in zip(value["images"] or (), stems, strict=True) if name != f"{stem}.jpg"]
                named = zip(positions or (), stems, strict=False)
                wrong += [name for name, stem in named if name not in ("", f"{stem}.npy")]
                yield from (f"member {number} has a file named {short(name)}" for name in wrong[:1])


class ChatMix(Form):
    """LoongForge's `packed_chat_mix`: media are named `s000_jpg`, with or without dots."""

    names_content = False

    def kind(self, name: str) -> str | None:
        return kind_by_name(f".{re.split('[._]', name)[-1]}")

    def messages(self, value: Fields, positions: Sequence[Any] = ()) -> list[Message]:
        found: list[Message] = value["messages"]
        return found

    def defects(self, fields: Fields) -> Iterator[str]:
        return iter(())

    def unread(self, fields: Fields) -> Iterator[str]:
        """Energon decodes a part by what stands after its last dot; their cooker hands on what it gets."""
        if fields.get("media_type") == "mix":
            yield "media_type is mix, and LoongForge's cooker takes text, image and video"
        if self.has(fields, self.for_names):
            undecoded = [name for names in self.names(fields) for name in names if kind_by_name(name) is None]
            if undecoded:
                yield (
                    f"LoongForge's encoder gets {short(undecoded[0])} as bytes (media of this pack: {len(undecoded)}):"
                    " Energon decodes no part without an extension; energon_pack's loader reads it"
                )


class MixQA(ChatMix):
    """LoongForge's `packed_multi_mix_qa`: a prompt and a caption a member."""

    for_members = ("texts",)

    def members(self, fields: Fields) -> list[dict[str, Any]]:
        pairs = zip(fields["texts"]["prompts"], fields["texts"]["captions"], strict=False)
        return [{"messages": messages_of(CAPTIONING, {"prompts": [p], "captions": [c]})} for p, c in pairs]


def _is_turns(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(turns, str) or is_list_of(str)(turns) for turns in value)


def _is_texts(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    sides = value.get("prompts"), value.get("captions")
    return all(map(is_list_of(str), sides)) and len(sides[0] or ()) == len(sides[1] or ())


_LISTS = ("sample_ids", "token_lens", "num_supervised", "source_parts")
_MEDIA = {"media_files": _NAMES, "media_type": _MEDIA_TYPE}
_OF_LOONGFORGE = {name: _META[name] for name in ("pack_id", "sample_ids", "token_lens", "total_token_len")}
_TURNS = ("a list of texts, or of lists of them", _is_turns)
_CAPTIONING: Schema = {"images": _NAMES, "prompts": _TEXTS, "captions": _TEXTS}
_TIMES: Schema = {"fps": ("a list", _is_list), "timestamp_decimal": ("a list", _is_list)}

#: Those of this package, by flavour.
FORMS = {
    MULTI_MIX_QA: Form(MULTI_MIX_QA, {"messages": _OBJECTS, **_MEDIA}, {}, _META, ("messages", "media_files", *_LISTS)),
    CAPTIONING: Captioning(
        CAPTIONING,
        {
            **_CAPTIONING,
            "patch_positions": _NAMES,
            "timestamp_decimal": _TIMES["timestamp_decimal"],
            "sample_count": ("a count", _is_count),
        },
        {"fps": _TIMES["fps"], "source_fields": _OBJECTS},
        _META,
        (*CAPTIONING_COLUMNS, *_LISTS),
    ),
}
#: Fields that tell a form of other tools → it.
FOREIGN: dict[tuple[str, ...], Form] = {
    ("images", "captions"): Captioning(
        CAPTIONING,
        {"images": _NAMES, "prompts": _TURNS, "captions": _TURNS},
        {"sample_count": ("a count", _is_count), "patch_positions": _NAMES, **_TIMES},
        {},
        CAPTIONING_COLUMNS[:-1],
        whose="LLaVA-OneVision-2's packed_captioning",
    ),
    ("texts", "media_files", "_meta"): MixQA(
        MULTI_MIX_QA,
        {"texts": ("prompts and as many captions", _is_texts), **_MEDIA},
        {},
        _OF_LOONGFORGE,
        ("media_files", *_LISTS),
        whose="LoongForge's packed_multi_mix_qa",
    ),
    ("messages", "media_files", "_meta"): ChatMix(
        MULTI_MIX_QA,
        {"messages": _OBJECTS, **_MEDIA},
        {},
        _OF_LOONGFORGE,
        ("messages", "media_files", *_LISTS),
        "LoongForge's packed_chat_mix",
    ),
}
