"""LLaVA-OneVision-2's layout: prompts and captions alternate, and images are the only media.

<pack>.json  <pack>.img0_0.jpg  <pack>.img0_0.npy …
"""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from energon_pack.errors import quote
from energon_pack.samples.conversation import match_placeholders_with_media, option_fields, options_of
from energon_pack.samples.flavors.base import (
    COUNT_TYPE,
    LIST_TYPE,
    META_SCHEMA,
    NAMES_TYPE,
    OBJECTS_TYPE,
    TEXTS_TYPE,
    Conversation,
    Fields,
    PackedFlavor,
    Schema,
    sample_json,
)
from energon_pack.samples.media.kinds import IMAGE
from energon_pack.samples.member import NO_OPTIONS, MemberInput
from energon_pack.samples.pack_reader import captioning_part_name
from energon_pack.samples.record import Record
from energon_pack.samples.sample import Message, Parts, medium_of, patch_positions_of

#: The fields that are lists with an entry for each member, in the order of writing.
MEMBER_COLUMNS: Schema = {
    "images": NAMES_TYPE,
    "prompts": TEXTS_TYPE,
    "captions": TEXTS_TYPE,
    "patch_positions": NAMES_TYPE,
    "fps": LIST_TYPE,
    "timestamp_decimal": LIST_TYPE,
    "source_fields": OBJECTS_TYPE,
}
_OPTIONAL_COLUMNS = ("fps", "source_fields")
_ALTERNATING_ROLES = ("user", "assistant")


class PackedCaptioning(PackedFlavor):
    """LLaVA-OneVision-2's packs: lists of prompts, captions and images; times of images stay fields."""

    name = "packed_captioning"
    sample_class = "PackedCaptioningSample"
    subflavor = "packed_captioning"
    schema: ClassVar[Schema] = {**MEMBER_COLUMNS, "sample_count": COUNT_TYPE}
    optional: ClassVar[tuple[str, ...]] = _OPTIONAL_COLUMNS
    meta: ClassVar[Schema] = META_SCHEMA
    names_content = False  # all images are .jpg
    times_in_text = False
    media_field = "images"
    rules: ClassVar[tuple[str, ...]] = ("turns", "images")

    def part_names(self, index: int, media: Sequence[tuple[str, str]]) -> list[str]:
        """Name images `img3_0.jpg`, whatever their format is: LLaVA-OneVision-2's loader wants such names."""
        return [captioning_part_name(index, number) for number in range(len(media))]

    def positions_part(self, image: str) -> str | None:
        return f"{image.removesuffix('.jpg')}.npy"

    def write(self, conversations: Sequence[Conversation], meta: Fields) -> dict[str, Any]:
        members = [self.member_value(index, member) for index, member in enumerate(conversations)]
        columns = {name: [member[name] for member in members] for name in MEMBER_COLUMNS}
        columns = {name: items for name, items in columns.items() if name not in _OPTIONAL_COLUMNS or any(items)}
        return {**columns, "sample_count": len(members), "_meta": meta}

    def member_value(self, index: int, conversation: Conversation) -> dict[str, Any]:
        texts = [message["content"] for message in conversation.messages]
        stems = _image_stems(index, len(conversation.media))
        has_positions = conversation.has_positions or [False] * len(stems)
        fields, is_timed = conversation.fields, conversation.is_timed
        used = [*["patch_positions"] * bool(conversation.has_positions), *["fps", "timestamp_decimal"] * is_timed]
        return {
            "images": [f"{stem}.jpg" for stem in stems],
            "prompts": texts[::2],
            "captions": texts[1::2],
            "patch_positions": [f"{stem}.npy" * has for stem, has in zip(stems, has_positions, strict=True)],
            "fps": fields.get("fps") if is_timed else None,
            "timestamp_decimal": fields.get("timestamp_decimal") if is_timed else None,
            "source_fields": {key: item for key, item in fields.items() if key not in used},
        }

    def members(self, value: Fields) -> list[dict[str, Any]]:
        number = len(value["images"])
        columns = {name: value.get(name) or [None] * number for name in MEMBER_COLUMNS}
        columns |= {name: list(map(_as_list, value[name] or [None] * number)) for name in ("prompts", "captions")}
        columns["source_fields"] = value.get("source_fields") or [{}] * number
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=False)]

    def parts(self, value: Fields) -> list[list[str]]:
        images, arrays = value["images"], value["patch_positions"] or [[]] * len(value["images"])
        return [
            [f"img{s}_{i}.jpg" for i in range(len(names))] + [f"img{s}_{i}.npy" for i, name in enumerate(array) if name]
            for s, (names, array) in enumerate(zip(images, arrays, strict=False))
        ]

    def media_names(self, parts: Sequence[list[str]]) -> list[list[str]]:
        counts = (sum(self.kind(part) is not None for part in names) for names in parts)
        return [[f"{stem}.jpg" for stem in _image_stems(index, count)] for index, count in enumerate(counts)]

    def kind(self, part: str) -> str | None:
        return IMAGE.kind if part.endswith(".jpg") else None

    def messages(self, member: Fields, positions: Sequence[Any] = ()) -> list[Message]:
        return _messages_with_times(member, positions, 0)

    def fields(self, member: Fields) -> Fields:
        fields: Fields = member["source_fields"]
        return fields

    def samples(self, value: Fields) -> list[dict[str, Any]]:
        samples = []
        for member in self.members(value):
            times = {name: member[name] for name in ("fps", "timestamp_decimal") if member[name] is not None}
            messages = prompt_caption_turns(member["prompts"], member["captions"])
            samples.append(sample_json(Conversation(messages, None, {**member["source_fields"], **times}, [])))
        return samples

    def load(self, parts: Parts, value: Fields) -> dict[str, Any]:
        names = [[f"img{s}_{i}" for i in range(len(images))] for s, images in enumerate(value["images"])]
        positions = [[patch_positions_of(parts.get(f"{name}.npy")) for name in member] for member in names]
        meta, sources = value.get("_meta", {}), value.get("source_fields") or [{}] * len(names)
        options = [option_fields(fields) for fields in sources]
        return {
            "images": [[medium_of(parts, f"{name}.jpg", IMAGE.kind) for name in member] for member in names],
            "prompts": list(map(_as_list, value["prompts"])),
            "captions": list(map(_as_list, value["captions"])),
            "patch_positions": positions if any(p is not None for member in positions for p in member) else None,
            "fps": value.get("fps"),
            "timestamp_decimal": value.get("timestamp_decimal"),
            "options": options if any(options) else None,
            **{key: meta.get(key) for key in ("sample_ids", "token_lens", "num_supervised", "fingerprint")},
        }

    def inputs(self, sample: Any) -> Iterator[MemberInput]:
        for index, images in enumerate(sample.images):
            sample_id, token_len = self.measured(sample, index)
            columns = {name: getattr(sample, name) for name in ("prompts", "captions", "fps", "timestamp_decimal")}
            member = {name: column[index] if column else None for name, column in columns.items()}
            positions = sample.patch_positions[index] if sample.patch_positions else [None] * len(images)
            options = options_of(sample.options[index]) if sample.options else NO_OPTIONS
            messages = _messages_with_times(member, positions, len(images))
            yield MemberInput(sample_id, messages, images, token_len=token_len, options=options)

    def defects(self, fields: Fields) -> Iterator[str]:
        if {"sample_count", "images"} <= fields.keys() and fields["sample_count"] != len(fields["images"]):
            yield f"sample_count is {fields['sample_count']}, it has {len(fields['images'])} members"
        if not {"images", "prompts", "captions"} <= fields.keys():
            return
        for number, member in enumerate(self.members(fields)):
            prompts, captions = (len(member[name] or ()) for name in ("prompts", "captions"))
            if prompts != captions or not prompts:
                yield f"member {number} has {prompts} prompts and {captions} captions"
            positions, num_images = member["patch_positions"], len(member["images"] or ())
            if positions is not None and len(positions) != num_images:
                yield f"member {number} has {num_images} images and {len(positions)} patch_positions"
            stems = _image_stems(number, num_images)
            wrong = [n for n, stem in zip(member["images"] or (), stems, strict=True) if n != f"{stem}.jpg"]
            arrays = zip(positions or (), stems, strict=False)
            wrong += [name for name, stem in arrays if name not in ("", f"{stem}.npy")]
            yield from (f"member {number} has a file named {quote(name)}" for name in wrong[:1])


def _image_stems(index: int, num_images: int) -> list[str]:
    """Return the names of a member's images in the JSON, without their extensions."""
    return [f"img{index:03d}_sub{number:03d}" for number in range(num_images)]


def _as_list(turns: Any) -> Any:
    return [turns] if isinstance(turns, str) else turns


def prompt_caption_turns(prompts: Sequence[str], captions: Sequence[str]) -> list[Message]:
    """Make a conversation in which each prompt is a user's turn, and each caption the assistant's turn after it."""
    turns = zip(prompts, captions, strict=True)
    return [
        {"role": role, "content": text} for turn in turns for role, text in zip(_ALTERNATING_ROLES, turn, strict=True)
    ]


def _messages_with_times(member: Fields, positions: Sequence[Any], num_images: int) -> list[Message]:
    """Return the messages of a member with the times of its images, and with placeholders if its text has none.

    `positions`: each image's patch positions, None for an image without; empty: write no times.
    """
    fields = {name: member[name] for name in ("fps", "timestamp_decimal")}
    record = Record(prompt_caption_turns(member["prompts"], member["captions"]), fields=fields)
    placed = match_placeholders_with_media(record, [IMAGE.kind] * num_images)
    return placed.timed_messages(positions) if positions else placed.messages
