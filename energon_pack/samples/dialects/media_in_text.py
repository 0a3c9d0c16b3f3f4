"""Reads media that stand in the text, between texts of a document, or in the words of an API. Pure.

`replace_checked_media_tags` and `media_name_in` read a medium in a text, and in the words of an API:

    "Picture 1: <img>a.png</img>"     "<audio>a.wav</audio>"                         Qwen-VL, Qwen-Audio, ms-swift
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", …}}    Anthropic

`with_document_as_messages` reads documents, whose pictures stand between texts:

    {"texts": ["A cat.", null], "images": [null, "a.jpg"]}                                 OBELICS, MINT-1T, OmniCorpus
    {"text_list": ["A.", "A cat."], "image_info": [{"image_name": "a.jpg", "matched_text_index": 1}]}              MMC4

Each document becomes one message of the role `document`, with its pictures where they stand: it is trained whole.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from energon_pack.run.address import bucket_of
from energon_pack.samples.documents import DOCUMENT, with_joined_texts
from energon_pack.samples.media.kinds import IMAGE, KINDS, MEDIA_KEYS, media_kind_by_extension
from energon_pack.samples.media_marks import CODE
from energon_pack.samples.placeholders import spells_placeholder
from energon_pack.samples.sample import Message
from energon_pack.samples.settings import MissingMediaPolicy, ReadSettings, SampleType
from energon_pack.samples.skip import Reason, Skip, value_of_synonyms

#: marks that ms-swift replaces by the names and boxes in the field `objects`
_OBJECT_MARKS = ("<ref-object>", "<bbox>")
#: a tag in a text → the kind of the medium that it names
_KIND_OF_TAG = {"img": IMAGE.kind, **{kind: kind for kind in KINDS}}
_TAGS = "|".join(_KIND_OF_TAG)
_TAG = re.compile(rf"<({_TAGS})>([^<>\n]+)</\1>")  # HTML has no </img>
#: the end of another tag: the text is HTML or XML, such as a page that a user asks about
_OTHER_END_TAG = re.compile(rf"</(?!(?:{_TAGS}|ref|box|quad)>)")
DOWNLOAD_ADVICE = "media are read from files: download it first (img2dataset does), and write the file's name"
_BASE64_ADVICE = "`data:TYPE;base64,` is read from a value of its own, not from JSON that stands in a text"

REMOVE_ADVICE = "source.missing_media=remove trains the rest of the document"


def refuse_url(name: str, subject: str) -> None:
    """Raise Skip (`unsupported_media`) for a URL in a name's place. `subject`: subject and verb, as `images lists`."""
    if name.startswith("data:") or ("://" in name[:12].replace("file://", "") and not bucket_of(name)):
        advice = _BASE64_ADVICE if name.startswith("data:") else DOWNLOAD_ADVICE
        raise Skip(Reason.UNSUPPORTED_MEDIA, f"{subject} {name[:80]!r}: {advice}")


class _Tag(NamedTuple):
    found: re.Match[str]
    kind: str
    name: str


def _tags(text: str, role: str) -> list[_Tag]:
    """Return the tags of a text that hold the name of a medium, or its data; an answer has none.

    HTML and XML have all but `<img>…</img>`: outside of questions, in code and beside other end tags they are letters.
    """
    if role == "assistant" or "</" not in text or not (all_found := [*_TAG.finditer(text)]):
        return []
    is_markup = role != "user" or _OTHER_END_TAG.search(text) is not None
    outside = text if is_markup else CODE.sub(lambda code: "`" * len(code[0]), text)
    tags = list[_Tag]()
    for found in all_found:
        name, is_img = found[2].strip(), found[1] == "img"
        kind = media_kind_by_extension(name.partition("?")[0])
        if (kind or name.startswith("data:")) and (is_img or not (is_markup or outside[found.start()] == "`")):
            # a key of images may list any medium, and so may their tag
            tags.append(_Tag(found, kind if kind and _KIND_OF_TAG[found[1]] == IMAGE.kind else found[1], name))
    return tags


def _with_tags_as_parts(messages: Sequence[Message], listed: Sequence[str], is_listed: bool) -> list[Message]:
    """Replace each `<img>a.png</img>` outside of the assistant's turns by a content part that names its medium.

    If the sample lists just these media (`listed`), placeholders replace them. `is_listed`: it lists any.

    Raises:
        Skip: `unsupported_media`: the sample has other media, too, or a name is a URL.
    """
    split = [_pieces(message) for message in messages]
    tags = [piece for pieces in split for piece in pieces if isinstance(piece, _Tag)]
    rest = "\n".join(piece for pieces in split for piece in pieces if isinstance(piece, str))
    is_same = len(tags) == len(listed) and all(
        is_name_of_file(tag.name, path) for tag, path in zip(tags, listed, strict=True)
    )
    has_others = is_listed and not is_same
    if has_others or spells_placeholder(rest) or any(not pieces for pieces in split):
        first = tags[0].found[0][:80] if tags else "a tag of a medium"
        detail = f"{first} in a text, and other media in the sample: list all, and write <image> where each stands"
        raise Skip(Reason.UNSUPPORTED_MEDIA, detail)
    for tag in tags:
        refuse_url(tag.name, f"{tag.found[0][:80]} in a text names")
    join = _joined_by_placeholders if listed else _content_parts
    return [
        {**message, "content": join(pieces)} if len(pieces) > 1 else message
        for message, pieces in zip(messages, split, strict=True)
    ]


def is_name_of_file(name: str, path: str) -> bool:
    """Tell whether a name and a path are the same, or one is the end of the other: `0.png` and `images/0.png`."""
    return f"/{path}".endswith(f"/{name}") or f"/{name}".endswith(f"/{path}")


def _pieces(message: Message) -> list[str | _Tag]:
    """Split a text at its tags; none: it is a question of content parts."""
    content, pieces, start = message["content"], list[str | _Tag](), 0
    if message["role"] == "assistant" or not isinstance(content, str):
        return [content] if message["role"] == "assistant" else []
    for tag in _tags(content, message["role"]):
        pieces += [content[start : tag.found.start()], tag]
        start = tag.found.end()
    return [*pieces, content[start:]]


def _joined_by_placeholders(pieces: Sequence[str | _Tag]) -> str:
    return "".join(piece if isinstance(piece, str) else KINDS[piece.kind].placeholder for piece in pieces)


def _content_parts(pieces: Sequence[str | _Tag]) -> list[Message]:
    return [
        {"type": "text", "text": piece} if isinstance(piece, str) else {"type": piece.kind, "name": piece.name}
        for piece in pieces
        if piece
    ]


def media_name_in(media_object: Any) -> Any:
    """Return the name or the data in an object that stands for a medium; another value is returned unchanged.

    OpenAI has `{"url": …}` and `{"data": …, "format": "wav"}`, Anthropic base64 in `source`, which becomes a data URL.
    """
    if not isinstance(media_object, Mapping):
        return media_object
    if media_object.get("type") == "base64" and isinstance(media_object.get("data"), str):
        return f"data:{media_object.get('media_type') or 'image/png'};base64,{media_object['data']}"
    return value_of_synonyms(media_object, ("url", "path", "data"))


def replace_checked_media_tags(
    messages: list[Message], fields: Mapping[str, Any], listed_media: Sequence[str] = ()
) -> list[Message]:
    """Replace `<img>a.png</img>` in the text by media; raises Skip if the text refers to boxes (`<bbox>`) in `objects`.

    `fields`: the sample's fields. `listed_media`: names of media that the sample lists outside of them.
    """
    if fields.get("objects"):
        whole = "".join(text for _, text in _roles_and_texts(messages))
        # unless an end tag follows: HTML, `<bbox>1,2,3,4</bbox>`
        if mark := next((m for m in _OBJECT_MARKS if m in whole and m.replace("<", "</") not in whole), None):
            detail = f"{mark} stands for a value of 'objects', which is not put in its place (source.map can write it)"
            raise Skip(Reason.BAD_MESSAGE, detail)
    if not any(_tags(text, role) for role, text in _roles_and_texts(messages)):
        return messages
    is_listed = bool(listed_media) or any(map(fields.get, ("name", "media_files", *MEDIA_KEYS)))
    return _with_tags_as_parts(messages, listed_media, is_listed)


def _roles_and_texts(messages: Sequence[Message]) -> Iterator[tuple[str, str]]:
    """Yield role and text of every text in the messages."""
    for message in messages:
        content = message["content"]
        if isinstance(content, str):
            yield message["role"], content
        else:
            yield from ((message["role"], part["text"]) for part in content if part["type"] == "text")


#: by the field of the texts, the field of the pictures
INTERLEAVED_FIELDS = {"texts": "images", "text_list": "image_info"}
#: where MMC4 has the name of a picture; shards of open_flamingo hold the picture itself
_NAME_KEYS = ("image_base64", "image_name", "raw_url")


def find_interleaved_texts_field(record: Mapping[str, Any]) -> str | None:
    """Return the field of a record that holds texts between pictures; None: it holds no such document."""
    both = [texts for texts, pictures in INTERLEAVED_FIELDS.items() if pictures in record]
    lists = {key: texts for key in both if (texts := record.get(key)) and isinstance(texts, list)}
    return next((key for key, texts in lists.items() if all(isinstance(text, str | None) for text in texts)), None)


def with_document_as_messages(record: dict[str, Any], settings: ReadSettings) -> dict[str, Any]:
    """Return a record with its interleaved document as its messages; the same record if it holds none; raises Skip."""
    field, messages_key = find_interleaved_texts_field(record), settings.messages_key
    if (
        field is None
        or messages_key not in (None, field)
        or settings.sample_type not in (SampleType.auto, SampleType.document)
    ):
        return record
    if record.get("messages") and messages_key is None:
        raise Skip(Reason.BAD_MESSAGE, f"it has messages and a document in {field}: source.messages_key decides")
    texts, listed = record[field], record.get(INTERLEAVED_FIELDS[field])
    if not any(text and text.strip() for text in texts):
        raise Skip(Reason.NO_MESSAGES, f"the document in {field} has no text")
    pictures = listed if isinstance(listed, list) else [listed] if listed else []
    if listed == [] and field == "texts":  # a place without a text has lost its picture
        pictures = [None] * len(texts)
    parts = [*with_joined_texts((_by_place if field == "texts" else _by_sentence)(texts, pictures))]
    if settings.missing_media is MissingMediaPolicy.skip and any(part.get(IMAGE.kind) == "" for part in parts):
        raise Skip(Reason.MISSING_MEDIA, f"a place of {field} has no text, and no picture either; {REMOVE_ADVICE}")
    rest = {key: item for key, item in record.items() if key not in ("messages", field, INTERLEAVED_FIELDS[field])}
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
