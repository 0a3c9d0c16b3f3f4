"""What a pack holds, by flavour: the names of its parts, and its JSON. Pure.

packed_multi_mix_qa   <pack>.json  <pack>.s000.i00.jpg  <pack>.s001.v00.mp4 …
packed_captioning     <pack>.json  <pack>.img0_0.jpg  <pack>.img0_0.npy …      LLaVA-OneVision-2's layout
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from energon_pack.sample import Message, media_type
from energon_pack.timestamps import stamped, time_marks

CAPTIONING = "packed_captioning"

_ALTERNATING = ("user", "assistant")


@dataclass(frozen=True)
class Conversation:
    """One member of a pack."""

    messages: list[Message]
    tools: list[Any] | None
    #: the sample's other fields, untouched
    fields: dict[str, Any]
    #: kind and extension of each medium, in the order of their placeholders
    media: list[tuple[str, str]]
    #: whether each image has patch positions; empty: none has
    has_positions: list[bool] = field(default_factory=list)
    #: whether its images have times, which are in the text of `packed_multi_mix_qa` and fields of `packed_captioning`
    is_timed: bool = False


def part_names(flavor: str, index: int, media: Sequence[tuple[str, str]]) -> list[str]:
    """The name of each medium: `s003.i00.jpg` is the first image of member 3, with the extension of its content.

    LLaVA-OneVision-2's loader asks for `img3_0.jpg`, whatever the bytes are.
    """
    if flavor == CAPTIONING:
        return [f"img{index}_{number}.jpg" for number in range(len(media))]
    counts = {"image": 0, "video": 0}
    names = []
    for kind, extension in media:
        names.append(f"s{index:03d}.{kind[0]}{counts[kind]:02d}.{extension}")
        counts[kind] += 1
    return names


def pack_value(flavor: str, members: Sequence[Conversation], meta: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON of a pack."""
    if flavor == CAPTIONING:
        return {**_captioning(members), "_meta": meta}
    return {
        "messages": [own_value(member) for member in members],
        "media_files": [part_names(flavor, index, member.media) for index, member in enumerate(members)],
        "media_type": media_type([kind for member in members for kind, _ in member.media]),
        "_meta": meta,
    }


def named_parts(value: Mapping[str, Any]) -> set[str]:
    """The parts that the JSON of a pack of either flavour names."""
    if "media_files" in value:
        return {name for names in value["media_files"] for name in names}
    positions = value["patch_positions"]
    return {
        name
        for s, images in enumerate(value["images"])
        for i in range(len(images))
        for name in ([f"img{s}_{i}.jpg"] + [f"img{s}_{i}.npy"] * bool(positions[s][i]))
    }


def not_captioning(messages: Sequence[Message], tools: list[Any] | None, kinds: Sequence[str]) -> str | None:
    """Why a conversation does not fit into `packed_captioning`, which has no place for it; None where it does."""
    roles = [message["role"] for message in messages]
    if "system" in roles or "tool" in roles:
        return f"a {'system' if 'system' in roles else 'tool'} turn"
    if tools:
        return "tools"
    if "video" in kinds:
        return "a video"
    if len(roles) % 2 or roles != [*_ALTERNATING] * (len(roles) // 2):
        return "turns of user and assistant do not alternate"
    for number, message in enumerate(messages):
        if not isinstance(message["content"], str):
            return f"message {number} spells a placeholder that is text"
        if more := [key for key in message if key not in ("role", "content") and message[key] is not None]:
            return f"message {number} has {', '.join(more)}"
    return None


def own_value(member: Conversation) -> dict[str, Any]:
    """Messages and other fields; one whose name the pack itself uses is under `source_fields`."""
    value: dict[str, Any] = {"messages": member.messages, **({"tools": member.tools} if member.tools else {})}
    clashing = {name: item for name, item in member.fields.items() if name in ("messages", "tools", "source_fields")}
    value |= {name: item for name, item in member.fields.items() if name not in clashing}
    return value | ({"source_fields": clashing} if clashing else {})


def _captioning(members: Sequence[Conversation]) -> dict[str, Any]:
    texts = [[message["content"] for message in member.messages] for member in members]
    names = [[f"img{s:03d}_sub{i:03d}" for i in range(len(member.media))] for s, member in enumerate(members)]
    with_positions = [member.has_positions or [False] * len(member.media) for member in members]
    used = [
        [*["patch_positions"] * bool(member.has_positions), *["fps", "timestamp_decimal"] * member.is_timed]
        for member in members
    ]
    fps, decimals = (
        [member.fields.get(key) if member.is_timed else None for member in members]
        for key in ("fps", "timestamp_decimal")
    )
    fields = [
        {key: item for key, item in member.fields.items() if key not in mine}
        for member, mine in zip(members, used, strict=True)
    ]
    return {
        "images": [[f"{name}.jpg" for name in of_member] for of_member in names],
        "prompts": [turns[::2] for turns in texts],
        "captions": [turns[1::2] for turns in texts],
        "sample_count": len(members),
        "patch_positions": [
            [f"{name}.npy" * has for name, has in zip(*of_member, strict=True)]
            for of_member in zip(names, with_positions, strict=True)
        ],
        **({"fps": fps} if any(fps) else {}),
        "timestamp_decimal": decimals,
        **({"source_fields": fields} if any(fields) else {}),
    }


def captioning_messages(sample: Any, index: int) -> list[Message]:
    """The conversation of one member of a `PackedCaptioningSample`, as it was measured."""
    turns = zip(sample.prompts[index], sample.captions[index], strict=True)
    messages: list[Message] = [
        {"role": role, "content": text} for turn in turns for role, text in zip(_ALTERNATING, turn, strict=True)
    ]
    if not sample.fps or sample.fps[index] is None:
        return messages
    decimals = sample.timestamp_decimal[index] if sample.timestamp_decimal else None
    positions = sample.patch_positions[index] if sample.patch_positions else [None] * len(sample.images[index])
    return stamped(messages, time_marks(sample.fps[index], decimals, positions))
