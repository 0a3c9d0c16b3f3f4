"""Finds names of images and videos in the fields of a sample, whether or not these fields are read."""

from collections.abc import Iterator, Mapping
from typing import Any

from energon_pack.samples.media.formats import kind_by_name
from energon_pack.samples.sample import MESSAGE_KEYS

_LONGEST = 1024  # most characters of a name


def named_media(fields: Mapping[str, Any]) -> Iterator[str]:
    """Yield values that look like an image or video file, in all fields but the conversation."""
    waiting = [item for key, item in fields.items() if key not in MESSAGE_KEYS]
    while waiting:
        item = waiting.pop()
        if isinstance(item, Mapping):
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
        elif isinstance(item, str) and _is_name(item):
            yield item


def _is_name(text: str) -> bool:
    return len(text) <= _LONGEST and "." in text and "\n" not in text and kind_by_name(text) is not None
