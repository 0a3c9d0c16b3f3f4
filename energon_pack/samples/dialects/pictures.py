"""Reads media that stand in the text, or in the words of an API. Pure.

"Picture 1: <img>a.png</img>"                                                    Qwen-VL
{"type": "image", "source": {"type": "base64", "media_type": "image/png", …}}    Anthropic
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from energon_pack.samples.media.formats import kind_by_name
from energon_pack.samples.placeholders import num_placeholders
from energon_pack.samples.sample import Message

_PICTURE = re.compile(r"<img>([^<>\n]+)</img>")  # HTML has no </img>
TO_DOWNLOAD = "media are read from files: download it first (img2dataset does), and write the file's name"


def pictures_in(text: str) -> list[str]:
    """Return the names of the media that a text holds as `<img>a.png</img>`."""
    names = _PICTURE.findall(text) if "<img>" in text else []
    return [name for name in names if kind_by_name(name.strip().partition("?")[0])]


def with_pictures(messages: Sequence[Message], lists_media: bool) -> list[Message]:
    """Return messages with a content part for each `<img>a.png</img>` of a question.

    A conversation whose media are listed, or that has placeholders too, stays unchanged: which medium stands where is
    not known.

    Args:
        lists_media: the sample lists media elsewhere.
    """
    asked = [m for m in messages if m["role"] != "assistant" and isinstance(m["content"], str)]
    if not any("<img>" in message["content"] and pictures_in(message["content"]) for message in asked):
        return list(messages)
    if lists_media or num_placeholders(messages) or not all(isinstance(m["content"], str) for m in messages):
        return list(messages)
    if any("://" in name for message in asked for name in pictures_in(message["content"])):
        return list(messages)
    return [m if m["role"] == "assistant" else {**m, "content": _parts(m["content"])} for m in messages]


def _parts(text: str) -> str | list[Message]:
    parts: list[Message] = []
    start = 0
    for match in _PICTURE.finditer(text):
        if kind := kind_by_name(match[1].strip()):
            parts += [{"type": "text", "text": text[start : match.start()]}] if match.start() > start else []
            parts.append({"type": kind, "name": match[1].strip()})
            start = match.end()
    if not parts:
        return text
    return [*parts, {"type": "text", "text": text[start:]}] if start < len(text) else parts


def name_in(named: Mapping[str, Any]) -> Any:
    """Return the name in an object that stands for a medium: OpenAI's `{"url": …}`, Anthropic's `source`."""
    if named.get("type") == "base64" and isinstance(named.get("data"), str):
        return f"data:{named.get('media_type') or 'image/png'};base64,{named['data']}"
    return named.get("url", named.get("path"))
