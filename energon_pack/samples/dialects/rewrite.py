"""Rewrites a record in our own words, before and after its conversation is found. Pure.

JSON ──in_our_words──► fields as `parse_record` knows them      messages ──with_marks_replaced──► messages
"""

from typing import Any

from energon_pack.samples.dialects.columns import renamed
from energon_pack.samples.dialects.interleaved import INTERLEAVED_KEYS, as_document
from energon_pack.samples.media.formats import kind_by_name
from energon_pack.samples.media.kinds import MEDIA_KEYS
from energon_pack.samples.settings import ReadSettings, SampleType


def in_our_words(value: Any, settings: ReadSettings) -> Any:
    """Rename what the settings name in a sample's JSON, and write an interleaved document as a message.

    Raises:
        Skip: `no_messages`, `bad_message`.
    """
    if settings.renames:
        value = renamed(value, settings)
    if isinstance(value, dict) and kind_by_name(str(value.get("file_name"))) and value.keys().isdisjoint(MEDIA_KEYS):
        value = _of_image_folder(value)
    if isinstance(value, dict) and not INTERLEAVED_KEYS.isdisjoint(value):
        is_wanted = settings.sample_type in (SampleType.auto, SampleType.document) and not settings.messages_key
        return as_document(value) if is_wanted else value
    return value


def _of_image_folder(value: dict[str, Any]) -> dict[str, Any]:
    """Rename the fields of ImageFolder's metadata.jsonl and metadata.csv: `{file_name, text}`."""
    ours = {"file_name": "image", "text": "caption"}
    return {ours.get(name, name): item for name, item in value.items()}
