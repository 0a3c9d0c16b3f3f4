"""Makes parts of a conversation: where it may be cut, and the content of a part.

A part is a range of its turns. `Cut.form` says what else is done to it:

    turns   all up to an answer; only the turns from `trained_turn` on are trained, images before `first_image` are text
    pairs   a question and its answer, with the media of the first question
    open    an answer whose text is cut, and whose end is not trained
    tokens  a document: of the tokens of a range of its text, those from `first_token` to `end_token`
    rejected  the rejected side of a preference pair; its chosen side has the form `turns`
"""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa

from energon_pack.samples.media.kinds import KIND_BY_LETTER
from energon_pack.samples.placeholders import (
    content_with_media_only,
    num_media_before,
    with_first_images_as_text,
    with_media_first,
)
from energon_pack.samples.sample import Message
from energon_pack.samples.weights import turn_weight, with_zero_weight

#: name of a part of a sample that was cut: `2of3`
PART_NAME = re.compile(r"[1-9]\d{0,6}of[1-9]\d{0,6}")

CUT_TYPE = pa.struct(
    [
        ("part", pa.string()),
        ("first_turn", pa.int32()),
        ("end_turn", pa.int32()),
        ("num_characters", pa.int32()),
        ("kinds", pa.string()),
    ]
)
#: type of parts that `labels.expand` made; tables without such parts have `CUT_TYPE`
EXPANDED_CUT_TYPE = pa.struct(
    [
        *CUT_TYPE,
        ("form", pa.string()),
        ("trained_turn", pa.int32()),
        ("first_image", pa.int32()),
        ("window_text", pa.string()),
    ]
)
#: type of parts of the forms `open` and `tokens`
TEXT_CUT_TYPE = pa.struct(
    [
        *EXPANDED_CUT_TYPE,
        ("first_character", pa.int32()),
        ("first_token", pa.int32()),
        ("end_token", pa.int32()),
    ]
)
CUT_FORMS = ("turns", "pairs", "open", "tokens", "rejected")
#: names of the parts of a preference pair
SIDES = CHOSEN, REJECTED = "chosen", "rejected"


class Cut(NamedTuple):
    """What a part takes from its sample; tables store it as `CUT_TYPE`, `EXPANDED_CUT_TYPE` or `TEXT_CUT_TYPE`."""

    part: str  # `2of3`, or one of `SIDES`
    first_turn: int  # a range of messages; the system turn is in each part
    end_turn: int
    num_characters: int | None  # characters kept of the last message's text, from `first_character` on; None: all
    kinds: str  # the letter of each medium of the whole sample
    form: str | None = None  # one of `CUT_FORMS`; None: only the range
    trained_turn: int | None = None  # the turns before this one are not trained
    first_image: int | None = None  # the first of the sample's images that stays one
    window_text: str | None = None  # the text that replaces the turns before
    first_character: int | None = None
    first_token: int | None = None  # this and the next: of the tokens of these characters alone
    end_token: int | None = None

    @property
    def sample_media_kinds(self) -> list[str]:
        return [KIND_BY_LETTER[letter] for letter in self.kinds]


def schema_with_cut_type(schema: pa.Schema, cuts: pa.StructType) -> pa.Schema:
    """Return a table's schema with `cuts` as the type of its column `cut`."""
    return schema.set(schema.get_field_index("cut"), pa.field("cut", cuts))


def convert_cut_column(cuts: pa.ChunkedArray, kind: pa.StructType) -> pa.ChunkedArray:
    """Convert a column of cuts to the type `kind`, which may have more fields at its end: these become null."""
    if cuts.type == kind:
        return cuts
    added = list(kind)[cuts.type.num_fields :]
    chunks = [
        pa.StructArray.from_arrays(
            [*chunk.flatten(), *(pa.nulls(len(chunk), each.type) for each in added)],
            fields=list(kind),
            mask=chunk.is_null(),
        )
        for chunk in cuts.chunks
    ]
    return pa.chunked_array(chunks, kind)


def member_id(sample_id: str, part: str | None) -> str:
    """Return the id of a member: that of its sample and the name of the part, as `0.jsonl:7#2of3`, `0.jsonl:7+chosen`.

    `part`: None: the whole sample.
    """
    return sample_id if part is None else f"{sample_id}{'+' if part in SIDES else '#'}{part}"


def split_numbered_member_id(sample_id: str) -> tuple[str, str | None]:
    """Split a member's id into the id of its sample and the name of the part (`2of3`; None: the whole sample)."""
    sample, mark, part = sample_id.rpartition("#")
    return (sample, part) if mark and PART_NAME.fullmatch(part) else (sample_id, None)


def exchange_bounds(messages: Sequence[Message]) -> list[int]:
    """Return the indices where a conversation may be cut: each exchange's first message, and the end of the last one.

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


def messages_of_part(messages: Sequence[Message], cut: Cut) -> list[Message]:
    """Return the messages of a part of a sample: the system turn, if there is one, and the turns that `cut` names."""
    if cut.first_image and cut.window_text is not None:
        messages = with_first_images_as_text(messages, cut.sample_media_kinds, cut.first_image, cut.window_text)
    if cut.trained_turn:
        messages = [with_zero_weight(m) if i < cut.trained_turn else m for i, m in enumerate(messages)]
    has_system = messages[0]["role"] == "system"
    first = max(cut.first_turn, has_system)
    part = [*messages[:has_system], *messages[first : cut.end_turn]]
    if cut.num_characters is not None:
        start = cut.first_character or 0
        part[-1] = {**part[-1], "content": part[-1]["content"][start : start + cut.num_characters]}
    if (asked := _repeated_media_turn(messages, cut)) is not None:
        media, asked_content = (
            content_with_media_only(messages[asked]["content"], cut.sample_media_kinds),
            part[has_system]["content"],
        )
        part[has_system] = {
            **part[has_system],
            "content": with_media_first(media, asked_content, cut.sample_media_kinds),
        }
    return part


def _repeated_media_turn(messages: Sequence[Message], cut: Cut) -> int | None:
    """Return the index of the user's first turn if a pair repeats the media of that turn; None: it does not."""
    first = first_user_turn(messages)
    return first if cut.form == "pairs" and first is not None and first < cut.first_turn else None


def first_user_turn(messages: Sequence[Message]) -> int | None:
    """Return the index of the user's first turn; None: there is none."""
    return next((i for i, message in enumerate(messages) if message["role"] == "user"), None)


def media_indices_of_part(messages: Sequence[Message], cut: Cut) -> list[int]:
    """Return the indices of the sample's media that are in a part, in the order of their placeholders there."""
    before = num_media_before(messages, cut.sample_media_kinds)
    has_system, asked = messages[0]["role"] == "system", _repeated_media_turn(messages, cut)
    media = [*range(before[has_system])]
    media += [] if asked is None else range(before[asked], before[asked + 1])
    media += range(before[max(cut.first_turn, has_system)], before[cut.end_turn])
    images = [number for number, letter in enumerate(cut.kinds) if letter == "i"]
    old = set(images[: cut.first_image or 0])
    return [number for number in media if number not in old]


def indices_within_kind(cut: Cut, media: Sequence[int], letter: str) -> list[int]:
    """Turn indices among all media of a sample into indices among its media of one kind; leave out other kinds.

    Of an image, a video and an image, `media` [1, 2] become [1] for the `letter` `i` (image), and [0] for `v` (video).
    """
    return [cut.kinds[:number].count(letter) for number in media if cut.kinds[number] == letter]


def fields_of_part(fields: Mapping[str, Any], cut: Cut, media: Sequence[int]) -> dict[str, Any]:
    """Return the fields of a part: `video_frames`, `patch_positions` and `media_settings` list only its media.

    The forms `open` and `tokens` add `label_settings` without an end of turn, and the `token_range`.
    `media`: the part's media, as `media_indices_of_part` returns them.
    """
    of_part = dict(fields)
    if isinstance(frames := fields.get("video_frames"), list):
        of_part["video_frames"] = [
            frames[number] for number in indices_within_kind(cut, media, "v") if number < len(frames)
        ]
    names = fields.get("patch_positions")
    if isinstance(names, list) and len(names) == cut.kinds.count("i"):
        of_part["patch_positions"] = [names[number] for number in indices_within_kind(cut, media, "i")]
    settings = fields.get("media_settings")
    if isinstance(settings, list) and len(settings) == len(cut.kinds):
        of_part["media_settings"] = [settings[number] for number in media]
    if cut.form == "open":
        of_part["label_settings"] = {**(fields.get("label_settings") or {}), "end_of_turn": False}
    if cut.form == "tokens":
        of_part["token_range"] = [cut.first_token, cut.end_token]
    return of_part


def cut_by_answer(
    messages: Sequence[Message], media_kinds: Sequence[str], only_last: bool, max_images: int | None, window_text: str
) -> list[Cut]:
    """Cut a conversation into one part for each trained answer: all turns up to it. Empty: it stays whole.

    A trained turn that is no answer is trained in the part of the next answer.

    Args:
        media_kinds: the kind of each medium, in the order of the placeholders.
        only_last: `labels.train_on=last`: only the last answer is trained, and answers whose own keys ask for it.
        max_images: how many images a part keeps, the last ones; None: all.
        window_text: the text that replaces each other image.
    """
    answers = _answer_indices(messages)
    if len(answers) < 2:
        return []
    chosen = {answers[-1]} if only_last else {*answers}
    trained = [i for i, message in enumerate(messages) if turn_weight(message, i in chosen)]
    ends = [i + 1 for i in trained if i in answers or i == trained[-1]]
    before, letters = num_media_before(messages, media_kinds), "".join(kind[0] for kind in media_kinds)
    parts = []
    for number, (last, end) in enumerate(pairwise([0, *ends]), 1):
        images = letters[: before[end]].count("i")
        old = max(0, images - max_images) if max_images is not None else 0
        text = window_text if old else None
        parts.append(Cut(f"{number}of{len(ends)}", 0, end, None, letters, "turns", last, old, text))
    is_whole = len(parts) == 1 and parts[0].end_turn == len(messages) and not parts[0].first_image
    return [] if is_whole else parts


def cut_by_question(messages: Sequence[Message], media_kinds: Sequence[str]) -> list[Cut]:
    """Cut a conversation into one part for each question with its answer; each has the media of the user's first turn.

    Empty: the conversation stays whole, because it has one question, or its first question has no media.
    """
    first, edges, before = first_user_turn(messages), exchange_bounds(messages), num_media_before(messages, media_kinds)
    if first is None or before[first] == before[first + 1]:
        return []
    edges = [edges[0], *(edge for edge in edges[1:] if edge > first)]  # answers before the first question join its pair
    pairs = [*pairwise(edges)]
    if len(pairs) < 2:
        return []
    letters = "".join(kind[0] for kind in media_kinds)
    return [Cut(f"{number}of{len(pairs)}", *pair, None, letters, "pairs") for number, pair in enumerate(pairs, 1)]


def _answer_indices(messages: Sequence[Message]) -> list[int]:
    return [i for i, message in enumerate(messages) if message["role"] == "assistant"]
