"""Reads a sample's options for rendering and training, from the fields of a source and of a pack alike. Pure.

{"weight": 0.5, "chat_template_kwargs": {"enable_thinking": false}, "media_settings": [{"max_pixels": 50176}, null],
 "label_settings": {"train_on": "last"}, "use_audio_in_video": true, "token_range": [1, 1025]}
"""

from collections.abc import Mapping
from typing import Any

from energon_pack.samples.media.medium import SHARED_KEYS
from energon_pack.samples.member import NO_OPTIONS, SampleOptions
from energon_pack.samples.skip import Reason, Skip
from energon_pack.samples.weights import sample_weight

#: the fields of a sample that `options_of` reads
OPTION_KEYS = (
    "weight", "chat_template_kwargs", "media_settings", "label_settings", "use_audio_in_video", "token_range",
)  # fmt: skip
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
