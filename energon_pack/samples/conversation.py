"""Joins a record and its media into one conversation, as packs store it and as a template renders it. Pure.

    record, kinds of its media ──match_placeholders_with_media──► messages whose placeholders match the media
                               ──timed_messages──► these messages with the time of each frame in the text
                               ──of_record──► `ReadSample`: the same with its media

Measuring, writing and training all use these functions, so that a sample means the same in each of the three.
`options_of` reads its options for rendering and training, from the fields of a source and of a pack alike:

    {"weight": 0.5, "chat_template_kwargs": {"enable_thinking": false}, "media_settings": [{"max_pixels": 50176}, null],
     "label_settings": {"train_on": "last"}, "use_audio_in_video": true, "token_range": [1, 1025]}
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from energon_pack.samples.dialects.pairs import question_and_answer_turns
from energon_pack.samples.dialects.rewrite import is_rendered_chat
from energon_pack.samples.frames import image_time_texts, patch_position_files, settings_mark_frame_lists
from energon_pack.samples.keys import OPTION_KEYS
from energon_pack.samples.media.kinds import IMAGE, KINDS
from energon_pack.samples.media.medium import SHARED_KEYS, Media
from energon_pack.samples.media_marks import refuse_lost_media
from energon_pack.samples.member import NO_OPTIONS, MemberInput, SampleOptions, media_keyword_arguments
from energon_pack.samples.placeholders import (
    media_settings_of_parts,
    num_media_before,
    num_text_placeholders,
    place_media,
    replace_foreign_placeholders,
)
from energon_pack.samples.record import Record
from energon_pack.samples.sample import MediaPart, Message, Part
from energon_pack.samples.skip import Reason, Skip
from energon_pack.samples.weights import sample_weight


class PlacedRecord(NamedTuple):
    """A record whose placeholders match its media one to one."""

    record: Record  # its `media_settings` are in the order of the placeholders
    num_images: int
    messages: list[Message]  # as packs store them, without times in the text
    order: list[int]  # media by their placeholders: `[1, 0]` if the text names the second one first
    placeholders_put_in: bool  # the sample had no placeholders
    rejected: Sequence[Message] = ()  # `messages` of the rejected side of a pair

    @property
    def patch_position_files(self) -> list[str]:
        """Return each image's file of patch positions, "" for an image without one; empty: no image has one."""
        return patch_position_files(self.record.fields, self.num_images)

    def time_texts(self, arrays: Sequence[Any]) -> list[str]:
        """Return the time of each image as text, such as `<0.5 seconds>`; empty: the sample has no `fps`.

        `arrays`: each image's patch positions, from `patch_position_files`, or None; empty: no image has any.
        """
        fields = self.record.fields
        if settings_mark_frame_lists(fields.get("media_settings")):
            return []  # the model's own processor writes the times of a video
        return image_time_texts(fields.get("fps"), fields.get("timestamp_decimal"), arrays or [None] * self.num_images)

    def timed_messages(self, patch_positions: Sequence[Any]) -> list[Message]:
        """Return the messages for a template: with `<0.5 seconds>` before each image if the sample has `fps`.

        `patch_positions`: as for `time_texts`.
        """
        return with_times_in_text(self.messages, self.time_texts(patch_positions))


def match_placeholders_with_media(record: Record, media_kinds: Sequence[str]) -> PlacedRecord:
    """Match the placeholders in a record's text with its media.

    Raises Skip as `place_media` does, and where a medium is lost.

    `media_kinds`: the kind of each medium, such as `image`, in the order in which the record lists the media.
    """
    record = _with_text_as_caption(record, media_kinds)
    messages, order, placeholders_put_in = place_media(record.messages, media_kinds, record.rejected[-1:])
    refuse_lost_media(messages, media_kinds, record.empty_media, record.is_caption)
    rejected, other_order = list[Message](), order
    if record.rejected:
        rejected, other_order, _ = place_media(record.rejected, media_kinds, record.messages[-1:])
    if rejected and (
        num_media_before(messages, media_kinds)[-2] != len(media_kinds)
        or (rejected[:-1], other_order) != (messages[:-1], order)
    ):
        raise Skip(Reason.NO_PAIR, "an answer holds a medium: media of a pair stand in its prompt")
    if in_parts := media_settings_of_parts(record.messages, media_kinds):
        fields = {
            **record.fields,
            "media_settings": _merged_media_settings(record.fields.get("media_settings"), in_parts),
        }
        record = replace(record, fields=fields)
    return PlacedRecord(record, list(media_kinds).count(IMAGE.kind), messages, order, placeholders_put_in, rejected)


def _with_text_as_caption(record: Record, kinds: Sequence[str]) -> Record:
    """Return a raw text beside one medium as its caption, unless it has a place for it, or is a chat written out."""
    if record.prompt_of_text is None or len(kinds) != 1:
        return record
    text = record.messages[0]["content"]
    if not isinstance(text, str) or is_rendered_chat(text):  # parts: a tag in it names the medium
        return record
    if num_text_placeholders(replace_foreign_placeholders(record.messages, kinds)):
        return record
    turns = question_and_answer_turns(record.prompt_of_text, text.strip())
    return replace(record, messages=turns, is_caption=True)


def _merged_media_settings(listed: Any, in_parts: list[dict[str, Any] | None]) -> list[dict[str, Any] | None]:
    """Merge the settings that a sample lists for its media with those in its content parts; the parts win."""
    if listed is None:
        return in_parts
    if not isinstance(listed, list) or len(listed) != len(in_parts):
        raise Skip(Reason.BAD_MESSAGE, f"media_settings is no list of {len(in_parts)} entries: {str(listed)[:80]}")
    return [{**(a or {}), **(b or {})} or None for a, b in zip(listed, in_parts, strict=True)]


def with_times_in_text(messages: Sequence[Message], time_texts: Sequence[str]) -> list[Message]:
    """Write the time of each image before its placeholder, and a newline after it, in all turns but the assistant's.

    `time_texts`: the time of each image as text, from `image_time_texts`; empty: the messages stay unchanged.
    """
    if not time_texts:
        return list(messages)
    waiting = list(reversed(time_texts))

    def in_text(text: str) -> str:
        first, *rest = text.split(IMAGE.placeholder)
        if len(rest) > len(waiting):
            raise Skip(Reason.PLACEHOLDER_MISMATCH, f"fps, and more than {len(time_texts)} <image> in the user's turns")
        return first + "".join(f"{waiting.pop()}{IMAGE.placeholder}\n{piece}" for piece in rest)

    def in_parts(parts: list[Message]) -> list[Message]:
        stamped_parts: list[Message] = []
        for part in parts:
            is_image = part["type"] == IMAGE.kind and waiting
            stamped_parts += (
                [{"type": "text", "text": waiting.pop()}, part, {"type": "text", "text": "\n"}] if is_image else [part]
            )
        return stamped_parts

    result = []
    for message in messages:
        content = message["content"]
        if message["role"] != "assistant":
            content = in_text(content) if isinstance(content, str) else in_parts(content)
        result.append({**message, "content": content})
    if waiting:
        raise Skip(Reason.PLACEHOLDER_MISMATCH, f"fps, and {len(waiting)} images in no turn of the user's")
    return result


_OPTION_NAMES = frozenset(OPTION_KEYS)


def option_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return those fields of a sample that `options_of` reads and that are not null."""
    return {key: fields[key] for key in OPTION_KEYS if fields.get(key) is not None}


def options_of(fields: Mapping[str, Any]) -> SampleOptions:
    """Read a sample's options from its fields; raises Skip (`bad_message`) if a field has a wrong type."""
    if _OPTION_NAMES.isdisjoint(fields) or not (options := option_fields(fields)):
        return NO_OPTIONS
    variables, media = options.get("chat_template_kwargs", {}), options.get("media_settings", [])
    labels = options.get("label_settings", {})
    for name, value in (("chat_template_kwargs", variables), ("label_settings", labels)):
        if not isinstance(value, Mapping):
            raise Skip(Reason.BAD_MESSAGE, f"{name} are no object: {str(value)[:80]}")
    if not isinstance(media, list) or not all(item is None or isinstance(item, Mapping) for item in media):
        raise Skip(Reason.BAD_MESSAGE, f"media_settings are no list of objects: {str(media)[:80]}")
    hears = options.get("use_audio_in_video", False)
    if not isinstance(hears, bool):
        raise Skip(Reason.BAD_MESSAGE, f"use_audio_in_video is {str(hears)[:40]!r}, not true or false")
    tokens = options.get("token_range")
    is_range = isinstance(tokens, list) and len(tokens) == 2 and all(type(number) is int for number in tokens)
    if tokens is not None and not (is_range and 0 <= tokens[0] < tokens[1]):
        raise Skip(Reason.BAD_MESSAGE, f"token_range is {str(tokens)[:40]}, not the numbers of two tokens")
    all_media = {key: item for key, item in variables.items() if key in SHARED_KEYS}
    variables = {key: item for key, item in variables.items() if key not in SHARED_KEYS and item is not None}
    token_range = None if tokens is None else (tokens[0], tokens[1])
    return SampleOptions(sample_weight(options), variables, tuple(media), all_media, labels, hears, token_range)


#: fields that give images times; without them, no file of patch positions is read
TIME_FIELDS = frozenset(("fps", "patch_positions"))


class ReadSample(NamedTuple):
    """A sample that was read from its source, with its media; or a part of such a sample, if it was cut."""

    raw: bytes  # its JSON or text
    messages: list[Message]  # as packs store them: their placeholders match the media, no times in the text
    timed_messages: list[Message]  # as a template renders them: with the time of each frame
    tools: list[Any] | None
    fields: dict[str, Any]  # the other fields of its JSON
    parts: list[MediaPart]  # its media, in the order of their placeholders
    positions: list[Part | None]  # the patch positions of each image; empty: it names none
    time_texts: list[str]  # the time of each image, as in `timed_messages`; empty: images have no times
    is_timed: bool  # whether images of the whole sample have times
    media: list[Media]  # like `parts`, with their headers; empty: headers were not read
    placeholders_put_in: bool = False
    unknown: Sequence[str] = ()  # unknown keys
    leaves_out_tools: bool = False  # `source.tools` leaves its tools out
    drops_nulls: bool = False  # nulls of a table were taken out of it
    removed: Sequence[str] = ()  # names of pictures that are missing, whose places were removed
    rejected: Sequence[Message] = ()  # a pair's rejected side; `messages` hold its chosen one
    caption: Part | None = None  # the txt of its tar that is its caption

    @classmethod
    def of_record(
        cls,
        raw: bytes,
        placed: PlacedRecord,
        parts: list[MediaPart],
        media: list[Media],
        positions: list[Part | None],
        marks: list[str],
        caption: Part | None = None,
    ) -> "ReadSample":
        """Make an uncut sample; `raw`: its JSON or text, `marks`: the time of each image as text."""
        record, timed = placed.record, with_times_in_text(placed.messages, marks)
        return cls(
            raw, placed.messages, timed, record.tools, record.fields, parts, positions, marks, bool(marks), media,
            placed.placeholders_put_in, tuple(record.unknown), record.leaves_out_tools, record.drops_nulls,
            tuple(record.removed), placed.rejected, caption,
        )  # fmt: skip

    @property
    def kinds(self) -> list[str]:
        """The kind of each medium, such as `image`, in the order of the placeholders."""
        return [part.kind for part in self.parts]

    @property
    def has_time_fields(self) -> bool:
        """Whether the sample's fields give times to its images: by `fps`, or by files of patch positions."""
        return not self.fields.keys().isdisjoint(TIME_FIELDS)

    @property
    def options(self) -> SampleOptions:
        """The sample's own options for rendering and training; raises Skip if they are invalid."""
        return options_of(self.fields)

    def member(self, sample_id: str, media: Sequence[Any], token_len: int | None = None) -> MemberInput:
        """Return the sample with its media, as training encodes it.

        Args:
            sample_id: the sample's id.
            media: for each medium, in the order of the placeholders, its bytes or what a user's dataset decoded.
            token_len: the sample's measured length in tokens; None: not measured.
        """
        in_order = zip(self.parts, media, strict=True)
        named = [
            (part, f"{sample_id}: {part.name or f'{part.kind} {i}'}", data) for i, (part, data) in enumerate(in_order)
        ]
        by_kind = {
            kind: [medium.loaded(data, name_of) for part, name_of, data in named if part.kind == kind]
            for kind, medium in KINDS.items()
        }
        frames = self.fields.get("video_frames")
        return MemberInput(
            sample_id,
            self.timed_messages,
            tools=self.tools,
            video_frames=frames,
            token_len=token_len,
            options=self.options,
            num_removed=len(self.removed),
            **media_keyword_arguments(by_kind),
        )
