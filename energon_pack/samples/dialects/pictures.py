"""Reads media that stand in the text, or in the words of an API. Pure.

"Picture 1: <img>a.png</img>"     "<audio>a.wav</audio>"                         Qwen-VL, Qwen-Audio, ms-swift
{"type": "image", "source": {"type": "base64", "media_type": "image/png", …}}    Anthropic
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from energon_pack.run.address import bucket_of
from energon_pack.samples.markers import CODE
from energon_pack.samples.media.kinds import IMAGE, KINDS, MEDIA_KEYS, kind_by_extension
from energon_pack.samples.placeholders import spells_placeholder
from energon_pack.samples.sample import Message
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
        kind = kind_by_extension(name.partition("?")[0])
        if (kind or name.startswith("data:")) and (is_img or not (is_markup or outside[found.start()] == "`")):
            # a key of images may list any medium, and so may their tag
            tags.append(_Tag(found, kind if kind and _KIND_OF_TAG[found[1]] == IMAGE.kind else found[1], name))
    return tags


def with_tags_as_parts(messages: Sequence[Message], listed: Sequence[str], is_listed: bool) -> list[Message]:
    """Replace each `<img>a.png</img>` outside of the assistant's turns by a content part that names its medium.

    If the sample lists just these media (`listed`), placeholders replace them. `is_listed`: it lists any.

    Raises:
        Skip: `unsupported_media`: the sample has other media, too, or a name is a URL.
    """
    split = [_pieces(message) for message in messages]
    tags = [piece for pieces in split for piece in pieces if isinstance(piece, _Tag)]
    rest = "\n".join(piece for pieces in split for piece in pieces if isinstance(piece, str))
    is_same = len(tags) == len(listed) and all(
        names_file(tag.name, path) for tag, path in zip(tags, listed, strict=True)
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


def names_file(name: str, path: str) -> bool:
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
    if not any(_tags(text, role) for role, text in _roles_and_texts(messages)):
        return messages
    is_listed = bool(listed) or any(map(fields.get, ("name", "media_files", *MEDIA_KEYS)))
    return with_tags_as_parts(messages, listed, is_listed)


def _roles_and_texts(messages: Sequence[Message]) -> Iterator[tuple[str, str]]:
    """Yield role and text of every text in the messages."""
    for message in messages:
        content = message["content"]
        if isinstance(content, str):
            yield message["role"], content
        else:
            yield from ((message["role"], part["text"]) for part in content if part["type"] == "text")
