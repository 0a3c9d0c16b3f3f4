"""Conversations with their media, packed and unpacked: the default flavour of this package.

<pack>.json  <pack>.s000.i00.jpg  <pack>.s001.v00.mp4 …
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from energon_pack.samples.conversation import option_fields, options_of
from energon_pack.samples.flavors.base import (
    COUNTS_TYPE,
    MEDIA_SCHEMA,
    MESSAGES_FIELD,
    META_SCHEMA,
    OBJECTS_TYPE,
    Conversation,
    Fields,
    Flavor,
    PackedFlavor,
    Schema,
    sample_json,
)
from energon_pack.samples.media.kinds import IMAGE, KIND_BY_LETTER, KINDS, VIDEO
from energon_pack.samples.member import NO_OPTIONS, MemberInput, Shared, media_keyword_arguments
from energon_pack.samples.pack_reader import num_shared_media
from energon_pack.samples.sample import Parts, media_by_kind, media_kind_of_part, media_type

_MEDIA_PART_NAME = re.compile(rf"s\d{{3,}}\.([{''.join(KIND_BY_LETTER)}])\d{{2,}}\.[a-z0-9]+")  # s003.i00.jpg


class MultiMixQA(Flavor):
    """An unpacked sample: one conversation with its media."""

    name = "multi_mix_qa"
    sample_class = "MultiMixQASample"
    subflavor = "multi_mix_qa"

    def inputs(self, sample: Any) -> Iterator[MemberInput]:
        yield MemberInput(
            sample.__key__,
            sample.messages,
            sample.image or [],
            sample.video or [],
            sample.tools,
            sample.video_frames,
            options=options_of(sample.options or {}),
            audios=getattr(sample, "audio", None) or [],
            others=getattr(sample, "others", None) or {},
        )


class PackedMultiMixQA(PackedFlavor):
    """A pack of conversations; each has the same JSON as a separate sample."""

    name = "packed_multi_mix_qa"
    sample_class = "PackedMultiMixQASample"
    subflavor = "packed_chat_mix"
    schema: ClassVar[Schema] = {MESSAGES_FIELD: OBJECTS_TYPE, **MEDIA_SCHEMA}
    optional: ClassVar[tuple[str, ...]] = (MESSAGES_FIELD,)
    meta: ClassVar[Schema] = META_SCHEMA

    def part_names(self, index: int, media: Sequence[tuple[str, str]]) -> list[str]:
        """Name the parts: `s003.i00.jpg` is the first image of member 3, with the extension of its content."""
        counts = dict.fromkeys(KINDS, 0)
        names = []
        for kind, extension in media:
            names.append(f"s{index:03d}.{KINDS[kind].letter}{counts[kind]:02d}.{extension}")
            counts[kind] += 1
        return names

    def write(self, conversations: Sequence[Conversation], meta: Fields) -> dict[str, Any]:
        return {
            MESSAGES_FIELD: [self.member_value(index, member) for index, member in enumerate(conversations)],
            "media_files": self.all_part_names(
                [member.media for member in conversations], [member.num_shared for member in conversations]
            ),
            "media_type": media_type([kind for member in conversations for kind, _ in member.media]),
            "_meta": meta,
        }

    def member_value(self, index: int, conversation: Conversation) -> dict[str, Any]:
        return sample_json(conversation)

    def members(self, value: Fields) -> list[dict[str, Any]]:
        return list(value["messages"])

    def parts(self, value: Fields) -> list[list[str]]:
        return list(value["media_files"])

    def kind(self, part: str) -> str | None:
        match = _MEDIA_PART_NAME.fullmatch(part)
        return KIND_BY_LETTER[match[1]] if match else None

    def load(self, parts: Parts, value: Fields) -> dict[str, Any]:
        kinds = [
            [self.kind(name) or media_kind_of_part(parts, name) for name in names] for names in value["media_files"]
        ]
        named = [list(zip(*member, strict=True)) for member in zip(value["media_files"], kinds, strict=True)]
        media = [media_by_kind(parts, member) for member in named]
        members = self.members(value) if MESSAGES_FIELD in value else [{MESSAGES_FIELD: []}] * len(kinds)
        return {
            "messages": [member["messages"] for member in members],
            **media_keyword_arguments({kind: [member[kind] for member in media] for kind in KINDS}),
            "tools": [member.get("tools") for member in members],
            "video_frames": [member.get("video_frames") for member in members],
            "options": [option_fields(member) for member in members],
            "media_type": value["media_type"],
            **{name: value["_meta"][name] for name in ("sample_ids", "token_lens", "num_supervised", "fingerprint")},
        }

    def inputs(self, sample: Any) -> Iterator[MemberInput]:
        sounds, others = getattr(sample, "audios", None), getattr(sample, "others", None) or {}
        for index, messages in enumerate(sample.messages):
            sample_id, token_len = self.measured(sample, index)
            media = sample.images[index], sample.videos[index]
            frames = sample.video_frames[index] if sample.video_frames else None
            options = options_of(sample.options[index]) if sample.options else NO_OPTIONS
            yield MemberInput(
                sample_id,
                messages,
                *media,
                sample.tools[index],
                frames,
                token_len,
                options,
                sounds[index] if sounds else [],
                others={kind: own[index] for kind, own in others.items()},
            )

    def defects(self, fields: Fields) -> Iterator[str]:
        if MEDIA_SCHEMA.keys() <= fields.keys():
            kinds = [kind for names in self.parts(fields) for name in names if (kind := self.kind(name))]
            if fields["media_type"] != media_type(kinds):
                yield f"media_type is {fields['media_type']}, its media make it {media_type(kinds)}"


class PackedTrees(PackedMultiMixQA):
    """A pack of conversations that share beginnings (`packing.share`): shared media are stored once."""

    name = "packed_trees"
    sample_class = "PackedTreesSample"
    subflavor = "packed_trees"
    meta: ClassVar[Schema] = {**META_SCHEMA, "shared_lens": COUNTS_TYPE}

    def load(self, parts: Parts, value: Fields) -> dict[str, Any]:
        counts = list(num_shared_media(self.parts(value), value["_meta"]["shared_lens"]))
        kinds = [[media_kind_of_part(parts, name) for name in names] for names in value["media_files"]]
        shared = [kinds_of[:num] for kinds_of, num in zip(kinds, counts, strict=True)]
        return {
            **super().load(parts, value),
            "shared_lens": value["_meta"]["shared_lens"],
            "shared_images": [member.count(IMAGE.kind) for member in shared],
            "shared_videos": [member.count(VIDEO.kind) for member in shared],
        }

    def inputs(self, sample: Any) -> Iterator[MemberInput]:
        shared = zip(sample.shared_lens, sample.shared_images, sample.shared_videos, strict=True)
        for member, counts in zip(super().inputs(sample), shared, strict=True):
            yield replace(member, shared=Shared(*counts))
