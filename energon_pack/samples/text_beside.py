"""Reads a JSON with a txt beside it, as img2dataset writes them: the txt is a caption, as the JSON may have one. Pure.

000.json {"caption": null, "url": …}      000.txt "A cat."     the caption is "A cat."
000.json {"caption": "A cat.", …}         000.txt "A dog."     Skip: bad_message: they say different things
000.json {"messages": […], …}             000.txt "A dog."     the conversation; nobody reads the txt
"""

from typing import Any

from energon_pack.samples.conversation import caption_of_text
from energon_pack.samples.media.kinds import KINDS
from energon_pack.samples.record import Record, parse_record
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Reason, Skip


def parse_record_and_text(value: Any, text: str, has_media: bool, settings: ReadSettings) -> Record:
    """Normalise a sample's JSON, whose caption may lie in the txt beside it, as `parse_record` does.

    A JSON with a field `txt` is read alone.

    Raises:
        Skip: `bad_message`: both have a caption, and the two differ in more than blanks.
    """
    text = text.strip() if isinstance(value, dict) and "txt" not in value else ""
    has_none = bool(text) and has_media and not value.get("caption")
    try:
        record = parse_record(value, settings)
    except Skip as skip:
        if skip.reason is not Reason.NO_MESSAGES or not has_none:
            raise
        try:
            return parse_record({**value, "caption": text}, settings)
        except Skip:
            raise skip from None
    caption = _caption_of(record, has_media)
    if caption == "" and has_none:
        return parse_record({**value, "caption": text}, settings)
    if caption and text and caption.split() != text.split():
        both = f"its caption is {caption[:60]!r}, and its txt {text[:60]!r}"
        ways = "source.map gets both, as the fields `caption` and `txt`, and can leave one out"
        raise Skip(Reason.BAD_MESSAGE, f"{both}, which say different things: {ways}")
    return record


def _caption_of(record: Record, has_media: bool) -> str | None:
    """Return the caption of a record; None: it is another conversation, or a document."""
    if not record.is_caption:
        return caption_of_text(record, [*KINDS]) if has_media else None
    caption = record.messages[-1]["content"]
    return caption if isinstance(caption, str) else None
