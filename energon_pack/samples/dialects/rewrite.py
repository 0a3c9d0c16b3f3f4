"""Rewrites a record in our own words, before and after its conversation is found. Pure.

JSON ──in_our_words──► fields as `parse_record` knows them      messages ──with_marks_replaced──► messages
"""

from collections.abc import Mapping, Sequence
from typing import Any

from energon_pack.samples.dialects.boxes import with_boxes
from energon_pack.samples.dialects.columns import renamed
from energon_pack.samples.dialects.interleaved import INTERLEAVED_KEYS, as_document
from energon_pack.samples.dialects.pictures import with_pictures
from energon_pack.samples.sample import Message
from energon_pack.samples.settings import ReadSettings, SampleType

_MEDIA_KEYS = ("name", "media_files", "images", "image", "videos", "video")


def in_our_words(value: Any, settings: ReadSettings) -> Any:
    """Rename what the settings name in a sample's JSON, and write an interleaved document as a message.

    Raises:
        Skip: `no_messages`, `bad_message`.
    """
    if settings.renames:
        value = renamed(value, settings)
    if isinstance(value, dict) and not INTERLEAVED_KEYS.isdisjoint(value):
        is_wanted = settings.sample_type in (SampleType.auto, SampleType.document) and not settings.messages_key
        return as_document(value) if is_wanted else value
    return value


def with_marks_replaced(
    messages: Sequence[Message], fields: Mapping[str, Any], settings: ReadSettings, lists_media: bool
) -> list[Message]:
    """Put media in the place of `<img>a.png</img>`, and boxes in the place of `<bbox>`.

    Args:
        fields: of the sample.
        lists_media: the sample lists its media elsewhere than in `fields`.

    Raises:
        Skip: `bad_message`.
    """
    messages = with_pictures(messages, lists_media or any(map(fields.get, _MEDIA_KEYS)))
    if settings.boxes and fields.get("objects"):
        return with_boxes(messages, fields["objects"], settings.boxes)
    return messages
