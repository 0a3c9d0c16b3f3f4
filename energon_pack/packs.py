"""What a pack holds, by flavour: the names of its parts, and its JSON. Pure.

packed_multi_mix_qa   <pack>.json  <pack>.s000.i00.jpg  <pack>.s001.v00.mp4 …
packed_captioning     <pack>.json  <pack>.img0_0.jpg  <pack>.img0_0.npy …      LLaVA-OneVision-2's layout

    Conversation ──member_value──► what the JSON has of a member ──pack_value──► the JSON ──member_values──► the same
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from energon_pack.record import Record
from energon_pack.sample import Message, media_type
from energon_pack.samples.conversation import place

MULTI_MIX_QA = "packed_multi_mix_qa"
CAPTIONING = "packed_captioning"

#: The lists of `packed_captioning`, which have an entry for each member.
CAPTIONING_COLUMNS = ("images", "prompts", "captions", "patch_positions", "fps", "timestamp_decimal", "source_fields")
_LEFT_OUT_IF_EMPTY = ("fps", "source_fields")
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
    values = [member_value(flavor, index, member) for index, member in enumerate(members)]
    if flavor == CAPTIONING:
        columns = {name: [value[name] for value in values] for name in CAPTIONING_COLUMNS}
        columns = {name: items for name, items in columns.items() if name not in _LEFT_OUT_IF_EMPTY or any(items)}
        return {**columns, "sample_count": len(members), "_meta": meta}
    return {
        "messages": values,
        "media_files": [part_names(flavor, index, member.media) for index, member in enumerate(members)],
        "media_type": media_type([kind for member in members for kind, _ in member.media]),
        "_meta": meta,
    }


def member_value(flavor: str, index: int, member: Conversation) -> dict[str, Any]:
    """What the JSON of a pack has of one of its members."""
    return _captioning(index, member) if flavor == CAPTIONING else own_value(member)


def member_values(flavor: str, value: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Of each member what `member_value` made, from the JSON of a pack."""
    if flavor != CAPTIONING:
        return list(value["messages"])
    number = len(value["images"])
    empty: dict[str, list[Any]] = {"source_fields": [{}] * number}
    columns = [value.get(name) or empty.get(name, [None] * number) for name in CAPTIONING_COLUMNS]
    return [dict(zip(CAPTIONING_COLUMNS, row, strict=True)) for row in zip(*columns, strict=False)]


def messages_of(flavor: str, value: Mapping[str, Any]) -> list[Message]:
    """The conversation of one of `member_values`; in `packed_captioning` its times are not in the text."""
    if flavor != CAPTIONING:
        return list(value["messages"])
    turns = zip(value["prompts"], value["captions"], strict=True)
    return [{"role": role, "content": text} for turn in turns for role, text in zip(_ALTERNATING, turn, strict=True)]


def own_values(flavor: str, value: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Of each member what `own_value` makes of it, from the JSON of a pack; without `patch_positions` that it took."""
    if flavor != CAPTIONING:
        return list(value["messages"])
    found = []
    for row in member_values(flavor, value):
        fields = dict(row["source_fields"])
        fields |= {name: row[name] for name in ("fps", "timestamp_decimal") if row[name] is not None}
        found.append(own_value(Conversation(messages_of(flavor, row), None, fields, [])))
    return found


def media_names(flavor: str, value: Mapping[str, Any]) -> list[list[str]]:
    """The parts of each member, in the order in which they are written, from the JSON of a pack."""
    if flavor != CAPTIONING:
        return list(value["media_files"])
    positions = value.get("patch_positions") or [[]] * len(value["images"])
    return [
        [f"img{s}_{i}.jpg" for i in range(len(images))] + [f"img{s}_{i}.npy" for i, name in enumerate(names) if name]
        for s, (images, names) in enumerate(zip(value["images"], positions, strict=False))
    ]


def named_parts(value: Mapping[str, Any]) -> set[str]:
    """The parts that the JSON of a pack of either flavour names."""
    flavor = MULTI_MIX_QA if "media_files" in value else CAPTIONING
    return {name for names in media_names(flavor, value) for name in names}


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


def _captioning(index: int, member: Conversation) -> dict[str, Any]:
    texts = [message["content"] for message in member.messages]
    names = [f"img{index:03d}_sub{number:03d}" for number in range(len(member.media))]
    has_positions = member.has_positions or [False] * len(names)
    used = [*["patch_positions"] * bool(member.has_positions), *["fps", "timestamp_decimal"] * member.is_timed]
    return {
        "images": [f"{name}.jpg" for name in names],
        "prompts": texts[::2],
        "captions": texts[1::2],
        "patch_positions": [f"{name}.npy" * has for name, has in zip(names, has_positions, strict=True)],
        "fps": member.fields.get("fps") if member.is_timed else None,
        "timestamp_decimal": member.fields.get("timestamp_decimal") if member.is_timed else None,
        "source_fields": {key: item for key, item in member.fields.items() if key not in used},
    }


def captioning_messages(sample: Any, index: int) -> list[Message]:
    """The conversation of one member of a `PackedCaptioningSample`, as it was measured."""
    value = {
        name: getattr(sample, name)[index] if getattr(sample, name) else None
        for name in ("prompts", "captions", "fps", "timestamp_decimal")
    }
    positions = sample.patch_positions[index] if sample.patch_positions else [None] * len(sample.images[index])
    return timed_messages(CAPTIONING, value, positions, len(sample.images[index]))


def timed_messages(
    flavor: str, value: Mapping[str, Any], positions: Sequence[Any], num_images: int = 0
) -> list[Message]:
    """As `messages_of`, the times in the text, and placeholders put in where another tool's pack has none.

    Args:
        positions: the array of each image, None for one without; empty: without times.

    Raises:
        Skip: the times can't be told, or the placeholders do not match the images.
    """
    messages = messages_of(flavor, value)
    if flavor != CAPTIONING:
        return messages
    fields = {name: value[name] for name in ("fps", "timestamp_decimal")}
    placed = place(Record(messages, fields=fields), ["image"] * num_images)
    return placed.timed(positions) if positions else placed.messages
