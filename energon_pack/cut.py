"""Part of a conversation that is too long for a pack: where one may be cut, and what a part holds."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from energon_pack.record import Record
from energon_pack.sample import Message, place_media, split_content
from energon_pack.timestamps import stamped

#: Which part of a sample that was cut.
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
    """Which part of a sample this is: a row of `CUT_TYPE`."""

    part: str  # `2of3`
    first_turn: int  # a range of messages; the system turn is in each part
    end_turn: int
    num_characters: int | None  # kept of the last one's text; None: all
    kinds: str  # i or v for each medium of the whole sample

    @property
    def all_kinds(self) -> list[str]:
        return [{"i": "image", "v": "video"}[letter] for letter in self.kinds]


def split_id(sample_id: str) -> tuple[str, str | None]:
    """The sample that an id of a member names, and which part of it (`2of3`); None: the whole."""
    sample, mark, part = sample_id.rpartition("#")
    return (sample, part) if mark and PART_OF.fullmatch(part) else (sample_id, None)


def exchanges(messages: Sequence[Message]) -> list[int]:
    """Where a conversation may be cut: the first message of each exchange, and the end.

    An exchange is a user's turn with all that follows up to the next user's turn after an answer; it has an answer.
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
        starts.pop()  # a question at the end goes with the exchange before it
    return [*starts, len(messages)]


def num_media_before(messages: Sequence[Message], kinds: Sequence[str]) -> list[int]:
    """How many media stand in the messages before each one, and in all."""
    counts = [0]
    for message in split_content(messages, kinds):
        content = message["content"]
        counts.append(counts[-1] + (0 if isinstance(content, str) else sum(part["type"] != "text" for part in content)))
    return counts


def messages_of(messages: Sequence[Message], first: int, end: int, num_characters: int | None) -> list[Message]:
    """The messages of a part: the system turn, if there is one, and a range of the others."""
    has_system = messages[0]["role"] == "system"
    part = [*messages[:has_system], *messages[max(first, has_system) : end]]
    if num_characters is not None:
        part[-1] = {**part[-1], "content": part[-1]["content"][:num_characters]}
    return part


def stored(
    record: Record, kinds: Sequence[str], cut: Cut | None, marks: Sequence[str] = ()
) -> tuple[list[Message], dict[str, Any]]:
    """A sample, or a part of one, as a pack holds it: its messages, and its other fields untouched.

    `video_frames` and `patch_positions` of a part list those of its own media alone.

    Args:
        kinds: of the media it holds.
        marks: the times of the images of the whole sample, that are put into its text.

    Raises:
        Skip: the placeholders of the sample do not match its media.
    """
    if cut is None:
        messages, _, _ = place_media(record.messages, kinds)
        return stamped(messages, marks), record.fields
    messages, _, _ = place_media(record.messages, cut.all_kinds)
    messages = stamped(messages, marks)
    first, end = (num_media_before(messages, cut.all_kinds)[turn] for turn in (cut.first_turn, cut.end_turn))
    fields = dict(record.fields)
    if isinstance(fields.get("video_frames"), list):
        fields["video_frames"] = fields["video_frames"][cut.kinds[:first].count("v") : cut.kinds[:end].count("v")]
    names = fields.get("patch_positions")
    if isinstance(names, list) and len(names) == cut.kinds.count("i"):
        fields["patch_positions"] = names[cut.kinds[:first].count("i") : cut.kinds[:end].count("i")]
    return messages_of(messages, cut.first_turn, cut.end_turn, cut.num_characters), fields
