"""Cuts a conversation that is too long for a pack: the places where it may be cut, and the content of a part."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from energon_pack.samples.media.kinds import BY_LETTER
from energon_pack.samples.placeholders import split_content
from energon_pack.samples.sample import Message

#: The part of a sample that was cut.
PART_OF = re.compile(r"[1-9]\d{0,6}of[1-9]\d{0,6}")

CUT_TYPE = pa.struct(
    [
        ("part", pa.string()),
        ("first_turn", pa.int32()),
        ("end_turn", pa.int32()),
        ("num_characters", pa.int32()),
        ("kinds", pa.string()),
    ]
)


class Cut(NamedTuple):
    """Names a part of a sample: a row of `CUT_TYPE`."""

    part: str  # `2of3`
    first_turn: int  # a range of messages; the system turn is in each part
    end_turn: int
    num_characters: int | None  # characters kept of the last message's text; None: all
    kinds: str  # the letter of each medium of the whole sample

    @property
    def all_kinds(self) -> list[str]:
        return [BY_LETTER[letter] for letter in self.kinds]


def split_id(sample_id: str) -> tuple[str, str | None]:
    """Split a member's id into the id of its sample and the name of the part (`2of3`; None: the whole sample)."""
    sample, mark, part = sample_id.rpartition("#")
    return (sample, part) if mark and PART_OF.fullmatch(part) else (sample_id, None)


def exchanges(messages: Sequence[Message]) -> list[int]:
    """Return where a conversation may be cut: the index of the first message of each exchange, and the end.

    An exchange begins with a user's turn, holds at least one answer, and ends before the next user's turn that follows
    an answer. A document is one exchange.
    """
    starts: list[int] = []
    has_answer = True
    for index, message in enumerate(messages):
        if message["role"] == "system" and index == 0:
            continue
        if has_answer and (message["role"] == "user" or not starts):
            starts.append(index)
            has_answer = False
        has_answer |= message["role"] == "assistant"
    if len(starts) > 1 and not has_answer:
        starts.pop()  # a question without an answer at the end belongs to the exchange before it
    return [*starts, len(messages)]


def num_media_before(messages: Sequence[Message], kinds: Sequence[str]) -> list[int]:
    """Count the media in the messages before each message, and in all messages."""
    counts = [0]
    for message in split_content(messages, kinds):
        content = message["content"]
        counts.append(counts[-1] + (0 if isinstance(content, str) else sum(part["type"] != "text" for part in content)))
    return counts


def messages_of(messages: Sequence[Message], first: int, end: int, num_characters: int | None) -> list[Message]:
    """Return the messages of a part: the system turn, if there is one, and a range of the others."""
    has_system = messages[0]["role"] == "system"
    part = [*messages[:has_system], *messages[max(first, has_system) : end]]
    if num_characters is not None:
        part[-1] = {**part[-1], "content": part[-1]["content"][:num_characters]}
    return part


def media_of_part(messages: Sequence[Message], cut: Cut) -> dict[str, slice]:
    """Return for each kind the range of the sample's media that are in a part.

    Args:
        messages: those of the whole sample.
    """
    before = num_media_before(messages, cut.all_kinds)
    first, end = cut.kinds[: before[cut.first_turn]], cut.kinds[: before[cut.end_turn]]
    return {kind: slice(first.count(letter), end.count(letter)) for letter, kind in BY_LETTER.items()}


def fields_of_part(fields: Mapping[str, Any], cut: Cut, media: Mapping[str, slice]) -> dict[str, Any]:
    """Return the other fields of a part: `video_frames`, `patch_positions` and `media_settings` list only its media.

    Args:
        fields: those of the whole sample.
        media: as `media_of_part` returns it.
    """
    own = dict(fields)
    if isinstance(frames := fields.get("video_frames"), list):
        own["video_frames"] = frames[media["video"]]
    names = fields.get("patch_positions")
    if isinstance(names, list) and len(names) == cut.kinds.count("i"):
        own["patch_positions"] = names[media["image"]]
    settings = fields.get("media_settings")
    if isinstance(settings, list) and len(settings) == len(cut.kinds):
        start, stop = (sum(getattr(part, end) for part in media.values()) for end in ("start", "stop"))
        own["media_settings"] = settings[start:stop]
    return own
