"""Says which content of a sample packs can't hold: a layout has no place for it, or another stack's class. Pure.

A flavour names its rules. Lengths keep what each rule says of each sample, so that any flavour can be planned.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from energon_pack.samples.conversation import ReadSample, option_fields, options_of
from energon_pack.samples.documents import DOCUMENT
from energon_pack.samples.media.kinds import IMAGE, KINDS, VIDEO
from energon_pack.samples.media.read_media import media_seen_by_model
from energon_pack.samples.member import NO_OPTIONS
from energon_pack.samples.placeholders import PLACEHOLDERS
from energon_pack.samples.sample import Message
from energon_pack.samples.weights import PART_WEIGHTS, turn_weight

_ALTERNATING_ROLES = ["user", "assistant"]
#: formats that Energon 5's decoder knows by their extension; its stacks get others as bytes, and lose the pack
_DECODED_EXTENSIONS = ("jpg", "png", "gif", "webp", "bmp", "tif", "mp4", "avi", "mpg", "wmv")


def contents_forbidden_by_flavor_rules(sample: ReadSample) -> dict[str, str | None]:
    """Return for each of `FIT_RULES`, by name, the sample's content that it forbids ("tools"), or None."""
    return {name: rule(sample) for name, rule in FIT_RULES.items()}


def _more_than_turns(sample: ReadSample) -> str | None:
    """Return why a conversation is more than texts of user and assistant in turn; None: it is no more."""
    roles = [message["role"] for message in sample.messages]
    for other in ("system", "developer", "tool", DOCUMENT):
        if other in roles:
            return "a document" if other == DOCUMENT else f"a {other} turn"
    if sample.tools:
        return "tools"
    if len(roles) % 2 or roles != _ALTERNATING_ROLES * (len(roles) // 2):
        return "turns of user and assistant do not alternate"
    for number, message in enumerate(sample.messages):
        if not isinstance(message["content"], str):
            return f"message {number} spells a placeholder that is text"
        if len(message) == 2:
            continue
        if more := [key for key in message if key not in ("role", "content") and message[key] is not None]:
            return f"message {number} has {', '.join(more)}"
    return None


def _more_than_images(sample: ReadSample) -> str | None:
    return next((KINDS[kind].noun for kind in _kinds_seen_by_model(sample) if kind != IMAGE.kind), None)


def _more_than_other_stacks_read(sample: ReadSample) -> str | None:
    """Return the content that LoongForge's and LLaVA-OneVision-2's loaders lose, or train otherwise; None: none."""
    return (
        _media_other_stacks_refuse(sample)
        or _turn_other_stacks_misread(sample.messages)
        or _options_other_stacks_ignore(sample.fields)
    )


def _media_other_stacks_refuse(sample: ReadSample) -> str | None:
    """Return the media for which these encoders refuse a pack; None: none.

    They take either images or videos, as many as the text has placeholders.
    """
    kinds = _kinds_seen_by_model(sample)
    if unread := {*kinds}.difference((IMAGE.kind, VIDEO.kind)):
        return KINDS[min(unread, key=kinds.index)].noun
    if len({*kinds}) > 1:
        return "images and videos"
    if kinds != [part.kind for part in sample.parts]:
        return "a list of frames"
    texts = [message["content"] for message in sample.messages]
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            return f"message {number} spells a placeholder that is text"
    whole = "\n".join(texts)
    for kind in (IMAGE.kind, VIDEO.kind):
        if whole.count(PLACEHOLDERS[kind]) != kinds.count(kind):
            return f"its text spells {PLACEHOLDERS[kind]}"
    return None


def _turn_other_stacks_misread(messages: Sequence[Message]) -> str | None:
    """Return the turn that these parsers refuse, move to the front, or train with another weight; None: none."""
    for number, message in enumerate(messages):
        role = message["role"]
        if role not in ("system", "user", "assistant", "tool"):
            return "a document" if role == DOCUMENT else f"a {role} turn"
        if role == "system" and number:
            return "a system turn that is not the first"
        if PART_WEIGHTS in message or (len(message) > 2 and turn_weight(message, True) != (role == "assistant")):
            return f"message {number} has a weight"
    return None


def _options_other_stacks_ignore(fields: Mapping[str, Any]) -> str | None:
    options = options_of(fields)
    if options is not NO_OPTIONS and replace(options, media=tuple(filter(None, options.media))) != NO_OPTIONS:
        return ", ".join(option_fields(fields))
    return "video_frames" if fields.get("video_frames") is not None else None


def _undecoded_format(sample: ReadSample) -> str | None:
    part = next((part for part in sample.parts if part.extension not in _DECODED_EXTENSIONS), None)
    return part and f"{KINDS[part.kind].noun} in {part.extension}, which Energon's decoder leaves as bytes"


def _kinds_seen_by_model(sample: ReadSample) -> list[str]:
    """Return the kinds of media as a model sees them: a list of frames is a video."""
    seen = [medium.kind for medium, _ in media_seen_by_model(sample.media)] if sample.media else []
    return seen or [part.kind for part in sample.parts]


FIT_RULES: dict[str, Callable[[ReadSample], str | None]] = {
    "turns": _more_than_turns,
    "images": _more_than_images,
    "stacks": _more_than_other_stacks_read,
    "formats": _undecoded_format,
}
