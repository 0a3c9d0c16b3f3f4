"""Reads media that stand in the text, or in the words of an API. Pure.

"Picture 1: <img>a.png</img>"     "<audio>a.wav</audio>"                         Qwen-VL, Qwen-Audio, ms-swift
{"type": "image", "source": {"type": "base64", "media_type": "image/png", …}}    Anthropic
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from energon_pack.run.address import bucket_of
from energon_pack.samples.markers import CODE
from energon_pack.samples.media.kinds import IMAGE, KINDS, MEDIA_KEYS, kind_by_extension
from energon_pack.samples.placeholders import num_text_placeholders
from energon_pack.samples.sample import Message
from energon_pack.samples.skip import Reason, Skip, value_of_synonyms

#: marks that ms-swift replaces by the names and boxes in the field `objects`
_OBJECT_MARKS = ("<ref-object>", "<bbox>")
#: a tag in a text → the kind of the medium that it names
_KIND_OF_TAG = {"img": IMAGE.kind, **{kind: kind for kind in KINDS}}
_MAY_BE_PATH = re.compile(r"\S{1,1024}(?:/|::)\S{1,1024}")
#: the end of another tag: the text is HTML or XML, such as a page that a user asks about
_OTHER_END_TAG = re.compile(rf"</(?!(?:{'|'.join(_KIND_OF_TAG)}|ref|box|quad)>)")
_TAG = re.compile(rf"<({'|'.join(_KIND_OF_TAG)})>([^<>\n]+)</\1>")
DOWNLOAD_ADVICE = "media are read from files: download it first (img2dataset does), and write the file's name"
_BASE64_ADVICE = "`data:TYPE;base64,` is read from a value of its own, not from JSON that stands in a text"

REMOVE_ADVICE = "source.missing_media=remove trains the rest of the document"


def refuse_url(name: str, subject: str) -> None:
    """Raise Skip (`unsupported_media`) for a URL in a name's place. `subject`: subject and verb, as `images lists`."""
    if name.startswith("data:") or ("://" in name[:12].replace("file://", "") and not bucket_of(name)):
        advice = _BASE64_ADVICE if name.startswith("data:") else DOWNLOAD_ADVICE
        raise Skip(Reason.UNSUPPORTED_MEDIA, f"{subject} {name[:80]!r}: {advice}")


def with_tags_as_parts(messages: Sequence[Message], listed: Sequence[str], is_listed: bool) -> list[Message]:
    """Replace each `<img>a.png</img>` outside of the assistant's turns: by a content part, or by a placeholder.

    A part names its medium. If the sample lists (`listed`) the media of these tags in their order, they become
    placeholders. `is_listed`: whether it lists any media, here or in its fields.

    Raises:
        Skip: `unsupported_media`: the sample has other media, too (listed, or placeholders), or a name is a URL.
    """
    asked = [message for message in messages if message["role"] != "assistant"]
    texts = [message for message in asked if isinstance(message["content"], str)]
    tags = [tag for message in texts for tag in _tags(message["content"], message["role"])]
    for tag in tags:
        refuse_url(tag.name, f"{tag.found[0][:80]} in a text names")
    if len(texts) == len(asked) and listed and _are_listed(tags, listed):
        return [_with_each_tag(message, lambda tag: KINDS[tag.kind].placeholder) for message in messages]
    without = [_with_each_tag(message, lambda tag: "") for message in messages]
    if not tags or len(texts) < len(asked) or is_listed or num_text_placeholders(without):
        tag_text = tags[0].found[0][:80] if tags else "a tag of a medium"
        detail = f"{tag_text} in a text, and other media in the sample: list all, and write <image> where each stands"
        raise Skip(Reason.UNSUPPORTED_MEDIA, detail)
    return [{**message, "content": _content_parts(message)} for message in messages]


class _Tag(NamedTuple):
    found: re.Match[str]
    kind: str
    name: str


def _tags(text: str, role: str) -> list[_Tag]:
    """Return the tags of a text that hold the name of a medium, or its data.

    Letters are no tags: in answers, and in code. Documents and results of tools may be XML, where all but `<img>` are.
    """
    if role == "assistant" or "</" not in text:
        return []
    is_chat = role == "user" and not _OTHER_END_TAG.search(text)
    tags: Collection[str] = _KIND_OF_TAG if is_chat else ("img",)
    code = CODE.sub(lambda found: "`" * len(found[0]), text)
    named = [(found, found[2].strip()) for found in _TAG.finditer(code)]
    kinds = ((found, name, kind_by_extension(name.partition("?")[0])) for found, name in named)
    # a key of images may list any medium, and so may their tag
    return [
        _Tag(found, kind if kind and found[1] in ("img", IMAGE.kind) else _KIND_OF_TAG[found[1]], name)
        for found, name, kind in kinds
        if (kind or name.startswith("data:")) and found[1] in tags
    ]


def paths_in_tags(messages: Sequence[Message]) -> Iterator[str]:
    """Yield what questions have in tags that are no media by their names, if it may be a path, as `clips/0001`."""
    texts = [text for role, text in _roles_and_texts(messages) if role == "user" and "</" in text]
    names = (found[2].strip() for text in texts for found in _TAG.finditer(CODE.sub("", text)))
    yield from (name for name in names if kind_by_extension(name) or _MAY_BE_PATH.fullmatch(name))


def _are_listed(tags: Sequence[_Tag], listed: Sequence[str]) -> bool:
    """Tell whether a sample lists exactly the media that its tags name, of each kind that has a tag, in their order."""
    names = [(kind_by_extension(tag.name), tag.name) for tag in tags]
    kinds = {kind for kind, _ in names}
    paths = [(kind, path) for path in listed if (kind := kind_by_extension(path)) in kinds]
    return len(names) == len(paths) and all(
        [name for each, name in names if each == kind] == [path for each, path in paths if each == kind]
        for kind in kinds
    )


def _with_each_tag(message: Message, new: Callable[[_Tag], str]) -> Message:
    """Return a message with a text in place of each tag; an answer is returned unchanged."""
    content, texts, start = message["content"], list[str](), 0
    if not isinstance(content, str):
        return message
    for tag in _tags(content, message["role"]):
        texts += [content[start : tag.found.start()], new(tag)]
        start = tag.found.end()
    return {**message, "content": "".join([*texts, content[start:]])}


def _content_parts(message: Message) -> str | list[Message]:
    text, parts, start = message["content"], list[Message](), 0
    for tag in _tags(text, message["role"]) if isinstance(text, str) else ():
        parts += [{"type": "text", "text": text[start : tag.found.start()]}] if tag.found.start() > start else []
        parts.append({"type": tag.kind, "name": tag.name})
        start = tag.found.end()
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


def with_checked_tags(messages: list[Message], fields: Mapping[str, Any], listed: Sequence[str] = ()) -> list[Message]:
    """Replace `<img>a.png</img>` in the text by media; raises Skip if the text refers to boxes (`<bbox>`) in `objects`.

    `fields`: the sample's fields. `listed`: names of media that the sample lists outside of them.
    """
    if fields.get("objects"):
        whole = "".join(text for _, text in _roles_and_texts(messages))
        # unless an end tag follows: HTML, `<bbox>1,2,3,4</bbox>`
        if mark := next((m for m in _OBJECT_MARKS if m in whole and m.replace("<", "</") not in whole), None):
            detail = f"{mark} stands for a value of 'objects', which is not put in its place (source.map can write it)"
            raise Skip(Reason.BAD_MESSAGE, detail)
    for role, text in _roles_and_texts(messages):
        if _tags(text, role):
            is_listed = bool(listed) or any(map(fields.get, ("name", "media_files", *MEDIA_KEYS)))
            return with_tags_as_parts(messages, listed, is_listed)
    return messages


def _roles_and_texts(messages: Sequence[Message]) -> Iterator[tuple[str, str]]:
    """Yield role and text of every text in the messages."""
    for message in messages:
        content = message["content"]
        if isinstance(content, str):
            yield message["role"], content
        else:
            yield from ((message["role"], part["text"]) for part in content if part["type"] == "text")
