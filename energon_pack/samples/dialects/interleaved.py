"""Reads documents in which texts and pictures take turns. Pure.

    {"texts": ["A cat.", null], "images": [null, "a.jpg"]}                                 OBELICS, MINT-1T, OmniCorpus
    {"text_list": ["A.", "A cat."], "image_info": [{"image_name": "a.jpg", "matched_text_index": 1}]}              MMC4

Each becomes one message of the role `document`, with its pictures where they stand: it is trained whole.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from energon_pack.samples.dialects.pictures import REMOVE_ADVICE, media_name_in
from energon_pack.samples.documents import DOCUMENT, with_joined_texts
from energon_pack.samples.media.kinds import IMAGE
from energon_pack.samples.sample import Message
from energon_pack.samples.settings import MissingMedia, ReadSettings, SampleType
from energon_pack.samples.skip import Reason, Skip

#: by the field of the texts, the field of the pictures
INTERLEAVED_FIELDS = {"texts": "images", "text_list": "image_info"}
#: where MMC4 has the name of a picture; shards of open_flamingo hold the picture itself
_NAME_KEYS = ("image_base64", "image_name", "raw_url")


def texts_field(value: Mapping[str, Any]) -> str | None:
    """Return the field of a record that holds texts between pictures; None: it holds no such document."""
    both = [texts for texts, pictures in INTERLEAVED_FIELDS.items() if pictures in value]
    lists = {key: texts for key in both if (texts := value.get(key)) and isinstance(texts, list)}
    return next((key for key, texts in lists.items() if all(isinstance(text, str | None) for text in texts)), None)


def with_document_as_messages(value: dict[str, Any], settings: ReadSettings) -> dict[str, Any]:
    """Return a record with its interleaved document as its messages; the same record if it holds none; raises Skip."""
    field, messages_key = texts_field(value), settings.messages_key
    if (
        field is None
        or messages_key not in (None, field)
        or settings.sample_type not in (SampleType.auto, SampleType.document)
    ):
        return value
    if value.get("messages") and messages_key is None:
        raise Skip(Reason.BAD_MESSAGE, f"it has messages and a document in {field}: source.messages_key decides")
    texts, listed = value[field], value.get(INTERLEAVED_FIELDS[field])
    if not any(text and text.strip() for text in texts):
        raise Skip(Reason.NO_MESSAGES, f"the document in {field} has no text")
    pictures = listed if isinstance(listed, list) else [listed] if listed else []
    if listed == [] and field == "texts":  # a place without a text has lost its picture
        pictures = [None] * len(texts)
    parts = [*with_joined_texts((_by_place if field == "texts" else _by_sentence)(texts, pictures))]
    if settings.missing_media is MissingMedia.skip and any(part.get(IMAGE.kind) == "" for part in parts):
        raise Skip(Reason.MISSING_MEDIA, f"a place of {field} has no text, and no picture either; {REMOVE_ADVICE}")
    rest = {key: item for key, item in value.items() if key not in ("messages", field, INTERLEAVED_FIELDS[field])}
    return {messages_key or "messages": [{"role": DOCUMENT, "content": parts}], **rest}


def _by_place(texts: Sequence[str | None], pictures: Sequence[Any]) -> Iterator[Message]:
    """Yield the parts of two lists of equal length; a place that is null in both has lost its picture."""
    if pictures and len(pictures) != len(texts):
        detail = f"texts and images are no document: {len(texts)} places for texts, {len(pictures)} for images"
        raise Skip(Reason.BAD_MESSAGE, detail)
    for place, (text, picture) in enumerate(zip(texts, pictures or [""] * len(texts), strict=True)):
        if text and media_name_in(picture):
            raise Skip(Reason.BAD_MESSAGE, f"texts and images of a document both have something at place {place}")
        if text or media_name_in(picture) or (text is None and pictures):
            yield {"type": "text", "text": text} if text else _picture(picture)


def _by_sentence(texts: Sequence[str | None], infos: Sequence[Any]) -> Iterator[Message]:
    """Yield the parts of MMC4: each picture before its sentence, as open_flamingo puts it, in the order of the list."""
    before: dict[int, list[Message]] = defaultdict(list)
    for info in infos:
        place = info.get("matched_text_index") if isinstance(info, Mapping) else None
        if type(place) is not int or not 0 <= place < len(texts):
            raise Skip(Reason.BAD_MESSAGE, f"image_info has an image without a sentence: {str(info)[:80]}")
        before[place].append(_picture(next((info[key] for key in _NAME_KEYS if info.get(key)), None)))
    for place, text in enumerate(texts):
        yield from before[place]
        if text:
            yield {"type": "text", "text": f"{text} " if any(texts[place + 1 :]) else text}


def _picture(named: Any) -> Message:
    name = media_name_in(named) or ""
    if not isinstance(name, str):
        raise Skip(Reason.BAD_MESSAGE, f"a picture of a document has no name: {str(name)[:80]}")
    return {"type": IMAGE.kind, IMAGE.kind: name}
