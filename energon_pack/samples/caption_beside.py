"""The caption of a sample whose JSON in a tar has no text, in the txt beside it. Pure."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from energon_pack.samples.dialects.table import CONVERSATION_FIELDS
from energon_pack.samples.raw_record import parse_sample_json
from energon_pack.samples.record import Record
from energon_pack.samples.skip import Reason, Skip


def read_with_caption_beside(
    make_record: Callable[[Any], Record], json_value: Any, read_txt: Callable[[], bytes | str | None]
) -> tuple[Record, bool]:
    """Read a record; return also whether the txt beside its JSON is its caption, as where the JSON has no text.

    Args:
        make_record: makes a record of the JSON, or of the same with a `caption`; raises Skip.
        json_value: the JSON, or its bytes.
        read_txt: returns the txt, which is asked for only where it may be the caption.
    """
    try:
        return make_record(json_value), False
    except Skip as skip:
        if skip.reason is not Reason.NO_MESSAGES or skip.hint:
            raise
        fields = parse_sample_json(json_value) if isinstance(json_value, bytes) else json_value
        caption = ""
        with suppress(UnicodeDecodeError):  # then it is no caption
            caption = text_of_txt(read_txt() or "") if _has_no_text(fields) else ""
        if not caption.strip():
            raise
    return make_record({**fields, "caption": caption}), True


def text_of_txt(txt: bytes | str) -> str:
    """Return the text of a txt without its byte order mark; Energon may have decoded it.

    Raises:
        UnicodeDecodeError: it is not UTF-8.
    """
    return txt.removeprefix("\ufeff") if isinstance(txt, str) else txt.decode("utf-8-sig")


def _has_no_text(fields: Any) -> bool:
    if not isinstance(fields, dict) or fields.get("caption") is not None:
        return False
    return CONVERSATION_FIELDS.isdisjoint(fields.keys() - {"caption"})
