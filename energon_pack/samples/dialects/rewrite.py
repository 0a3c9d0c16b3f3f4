"""Rewrites a record in our own words, before and after its conversation is found. Pure.

JSON ──in_our_words──► fields as `parse_record` knows them      messages ──with_marks_replaced──► messages
"""

from typing import Any

from energon_pack.samples.dialects.columns import renamed
from energon_pack.samples.dialects.interleaved import INTERLEAVED_KEYS, as_document
from energon_pack.samples.dialects.table import TURN_FIELDS
from energon_pack.samples.media.formats import kind_by_name
from energon_pack.samples.media.kinds import MEDIA_KEYS
from energon_pack.samples.raw_json import parse_json
from energon_pack.samples.sample import MESSAGE_KEYS
from energon_pack.samples.settings import ReadSettings, SampleType
from energon_pack.samples.skip import Skip

#: fields whose list may be written as JSON text, as a cell of a table has it
_LISTS = frozenset((*MESSAGE_KEYS, *TURN_FIELDS, *MEDIA_KEYS))


def in_our_words(value: Any, settings: ReadSettings) -> Any:
    """Parse lists that are JSON text, rename what the settings name, and write an interleaved document as a message.

    Raises:
        Skip: `no_messages`, `bad_message`.
    """
    if isinstance(value, dict):
        value = _with_lists(value, settings)
    if settings.renames:
        value = renamed(value, settings)
    if not isinstance(value, dict):
        return value
    if "file_name" in value and kind_by_name(str(value["file_name"])) and value.keys().isdisjoint(MEDIA_KEYS):
        value = _of_image_folder(value)
    if not INTERLEAVED_KEYS.isdisjoint(value):
        is_wanted = settings.sample_type in (SampleType.auto, SampleType.document) and not settings.messages_key
        return as_document(value) if is_wanted else value
    return value


def _with_lists(value: dict[str, Any], settings: ReadSettings) -> dict[str, Any]:
    columns = settings.columns
    named = (settings.messages_key, columns.messages, columns.images, columns.videos, columns.audios)
    texts = {key: text for key, text in value.items() if isinstance(text, str) and (key in _LISTS or key in named)}
    lists = {key: _list_in(text) for key, text in texts.items() if text.lstrip()[:1] == "["}
    return value | {key: parsed for key, parsed in lists.items() if parsed is not None} if lists else value


def _list_in(text: str) -> list[Any] | None:
    """Return the list that a text is as JSON; None: it is another text."""
    try:
        parsed = parse_json(text)
    except Skip:
        return None
    return parsed if isinstance(parsed, list) else None


def _of_image_folder(value: dict[str, Any]) -> dict[str, Any]:
    """Rename the fields of ImageFolder's metadata.jsonl and metadata.csv: `{file_name, text}`."""
    ours = {"file_name": "image", "text": "caption"}
    return {ours.get(name, name): item for name, item in value.items()}
