"""Reads media that stand in the text, or in the words of an API. Pure.

"Picture 1: <img>a.png</img>"                                                    Qwen-VL
{"type": "image", "source": {"type": "base64", "media_type": "image/png", …}}    Anthropic
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from energon_pack.run.address import bucket_of
from energon_pack.samples.media.kinds import MEDIA_KEYS, kind_by_extension
from energon_pack.samples.placeholders import num_text_placeholders
from energon_pack.samples.sample import Message
from energon_pack.samples.skip import Reason, Skip, value_of_synonyms

#: marks that ms-swift replaces by the names and boxes in the field `objects`
_OBJECT_MARKS = ("<ref-object>", "<bbox>")


_IMG_TAG = re.compile(r"<img>([^<>\n]+)</img>")  # HTML has no </img>
DOWNLOAD_ADVICE = "media are read from files: download it first (img2dataset does), and write the file's name"
_BASE64_ADVICE = "`data:TYPE;base64,` is read from a value of its own, not from JSON that stands in a text"

REMOVE_ADVICE = "source.missing_media=remove trains the rest of the document"


def refuse_url(name: str, subject: str) -> None:
    """Raise Skip (`unsupported_media`) for a URL in a name's place. `subject`: subject and verb, as `images lists`."""
    if name.startswith("data:") or ("://" in name[:12].replace("file://", "") and not bucket_of(name)):
        advice = _BASE64_ADVICE if name.startswith("data:") else DOWNLOAD_ADVICE
        raise Skip(Reason.UNSUPPORTED_MEDIA, f"{subject} {name[:80]!r}: {advice}")


def img_tag_names(text: str) -> list[str]:
    """Return the file names of media that a text holds as `<img>a.png</img>`."""
    names = _IMG_TAG.findall(text) if "<img>" in text else []
    return [name for name in names if kind_by_extension(name.strip().partition("?")[0])]


def with_img_tags_as_parts(messages: Sequence[Message], lists_media: bool) -> list[Message]:
    """Replace each `<img>a.png</img>` outside of the assistant's turns by a content part.

    Raises:
        Skip: `unsupported_media`: the sample has other media, too (`lists_media`, or placeholders), or a name is a URL.
    """
    asked = [message for message in messages if message["role"] != "assistant"]
    texts = [message["content"] for message in asked if isinstance(message["content"], str)]
    if len(texts) < len(asked) or lists_media or num_text_placeholders(messages):
        detail = "<img> in a text, and other media in the sample: list all, and write <image> where each stands"
        raise Skip(Reason.UNSUPPORTED_MEDIA, detail)
    for name in (name for text in texts for name in img_tag_names(text)):
        if "://" in name:
            raise Skip(Reason.UNSUPPORTED_MEDIA, f"<img>{name}</img> in a text: {DOWNLOAD_ADVICE}")
    return [m if m["role"] == "assistant" else {**m, "content": _content_parts(m["content"])} for m in messages]


def _content_parts(text: str) -> str | list[Message]:
    parts: list[Message] = []
    start = 0
    for match in _IMG_TAG.finditer(text):
        if kind := kind_by_extension(match[1].strip()):
            parts += [{"type": "text", "text": text[start : match.start()]}] if match.start() > start else []
            parts.append({"type": kind, "name": match[1].strip()})
            start = match.end()
    if not parts:
        return text
    return [*parts, {"type": "text", "text": text[start:]}] if start < len(text) else parts


def media_name_in(named: Any) -> Any:
    """Return the name or the data in an object that stands for a medium; another value is returned unchanged.

    OpenAI has `{"url": …}` and `{"data": …, "format": "wav"}`, Anthropic base64 in `source`, which becomes a data URL.
    """
    if not isinstance(named, Mapping):
        return named
    if named.get("type") == "base64" and isinstance(named.get("data"), str):
        return f"data:{named.get('media_type') or 'image/png'};base64,{named['data']}"
    return value_of_synonyms(named, ("url", "path", "data"))


def with_checked_img_tags(
    messages: list[Message], fields: Mapping[str, Any], lists_media: bool = False
) -> list[Message]:
    """Replace `<img>a.png</img>` in the text by media; raises Skip if the text refers to boxes (`<bbox>`) in `objects`.

    `fields`: the sample's fields. `lists_media`: whether the sample lists media outside of them.
    """
    if fields.get("objects"):
        whole = "".join(text for _, text in _roles_and_texts(messages))
        # unless an end tag follows: HTML, `<bbox>1,2,3,4</bbox>`
        if mark := next((m for m in _OBJECT_MARKS if m in whole and m.replace("<", "</") not in whole), None):
            detail = f"{mark} stands for a value of 'objects', which is not put in its place (source.map can write it)"
            raise Skip(Reason.BAD_MESSAGE, detail)
    for role, text in _roles_and_texts(messages):
        if role != "assistant" and "<img>" in text and img_tag_names(text):
            listed = lists_media or any(map(fields.get, ("name", "media_files", *MEDIA_KEYS)))
            return with_img_tags_as_parts(messages, listed)
    return messages


def _roles_and_texts(messages: Sequence[Message]) -> Iterator[tuple[str, str]]:
    """Yield role and text of every text in the messages."""
    for message in messages:
        content = message["content"]
        if isinstance(content, str):
            yield message["role"], content
        else:
            yield from ((message["role"], part["text"]) for part in content if part["type"] == "text")
