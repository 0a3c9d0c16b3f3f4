"""Finds the places of media that a text marks in another tool's spelling. Pure.

    <image_1> <image 2> <|image_3|>     markers with numbers: each stands for the medium of its number
    <ImageHere> <IMAGE> <|image|>       markers without: each stands for the next medium
    (<image>./</image>) <image></image> placeholders that are closed at once, as MiniCPM-V writes them

Only a sample that has media, and no placeholder for them, is searched: elsewhere markers are letters, as in code.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice
from operator import attrgetter
from typing import NamedTuple

from energon_pack.errors import amount
from energon_pack.samples.media.kinds import IMAGE, KINDS
from energon_pack.samples.sample import Message
from energon_pack.samples.skip import Reason, Skip

#: code in Markdown: in it, all tags are letters
CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)
_NAMES = "|".join(KINDS)
_PLACEHOLDERS = frozenset(medium.placeholder for medium in KINDS.values())
_MARKER = re.compile(
    rf"(?:<\|(?:vision_start|audio_bos)\|>)?<(\|?)(img|{_NAMES})([ _-]?(?:here|placeholder|token|pad))?"
    r"(?:[ _-]?(\d{1,3}))?( ?/)?\1>(?:<\|(?:vision_end|audio_eos)\|>)?",
    re.IGNORECASE,
)
#: what HTML and React have, too: it is a marker only where a text begins, or alone in its line
_TAG_OF_MARKUP = re.compile(r"<(?:(?i:img|video|audio)|Image|\w+ ?/)>")
_ALONE_IN_LINE = re.compile(r"^[ \t]*(<[^<>\n]*>)[ \t]*$", re.MULTILINE)
_CLOSING_TAG = re.compile(r"</([^<>\n]*)>")
_MINICPM = re.compile(rf"\(<({_NAMES})>\./</\1>\)|<({_NAMES})>\./</\2>")
_CLOSED_AT_ONCE = re.compile(rf"<({_NAMES})></\1>")
_CLOSED = re.compile(rf"<({_NAMES})>[^<>\n]*</(?:{_NAMES})>")
_MAX_NAMED = 6  # markers in an error


class _Marker(NamedTuple):
    message: int  # the index of its message
    start: int
    end: int
    text: str
    kind: str
    number: int | None
    is_closed: bool  # a closing tag follows


def without_minicpm_marks(text: str) -> str:
    """Return a text with `<image>` for MiniCPM-V's `(<image>./</image>)`, and so for other kinds."""
    return _MINICPM.sub(lambda found: f"<{found[1] or found[2]}>", text) if "./</" in text else text


def without_closing_tags(messages: Sequence[Message], kinds: Sequence[str]) -> list[Message]:
    """Return messages with `<image>` in place of `(<image>./</image>)` and `<image></image>` in questions.

    `kinds`: of the media: tags of other kinds are letters.
    """

    def plain(content: str) -> str:
        for closed in (_MINICPM, _CLOSED_AT_ONCE):
            content = closed.sub(lambda found: f"<{kind}>" if (kind := _kind_of(found)) in kinds else found[0], content)
        return content

    return [{**m, "content": plain(m["content"])} if _is_question(m) and "</" in m["content"] else m for m in messages]


def refuse_closed_placeholders(messages: Sequence[Message], kinds: Sequence[str]) -> None:
    """Raise Skip (`placeholder_mismatch`) for `<image>something</image>` in a question of a sample with such media.

    Its letters would stay in the text, and a path in it may name another medium.
    """
    for text in (m["content"] for m in messages if _is_question(m) and "</" in m["content"]):
        if closed := next((found for found in _CLOSED.finditer(text) if found[1] in kinds), None):
            detail = f"{closed[0][:80]} in the text for {amounts(kinds)}: a placeholder stands alone, and names nothing"
            raise Skip(Reason.PLACEHOLDER_MISMATCH, f"{detail} (source.map can write <{closed[1]}>)")


def has_marker(messages: Sequence[Message], kinds: Sequence[str]) -> bool:
    """Tell whether a question marks the place of a medium in another tool's spelling. `kinds`: of the media."""
    return any(_markers_in(messages, kinds))


def with_placeholders_for_markers(
    messages: Sequence[Message], kinds: Sequence[str]
) -> tuple[list[Message], list[int]] | None:
    """Put placeholders where the questions have markers in another tool's spelling; None: they have none.

    `kinds`: the kind of each medium.

    Returns:
        The messages, and the order of the media by these placeholders, as indices into `kinds`.

    Raises:
        Skip: `placeholder_mismatch`: it is not certain what the markers stand for: numbers are no 1 to n for n media,
            or come twice, there are more or fewer markers than media, or markers of several spellings.
    """
    found = [*islice(_markers_in(messages, kinds), len(kinds) + 1)]
    whole = "".join(message["content"] for message in messages if isinstance(message["content"], str))
    if not found or any(marker.number is not None and whole.count(marker.text) > 1 for marker in found):
        return None  # markers that come again, in an answer too, are the names of the media, in their order
    media_of = {kind: _media_of_markers(found, kinds, kind) for kind in {*kinds}}
    if None in media_of.values():
        names = ", ".join([*dict.fromkeys(marker.text for marker in found)][:_MAX_NAMED])
        detail = f"{names} in the text for {amounts(kinds)}: it is not certain which stands for which"
        raise Skip(Reason.PLACEHOLDER_MISMATCH, f"{detail} (source.map can write <{found[0].kind}> in their places)")
    waiting = {kind: iter(media or ()) for kind, media in media_of.items()}
    of_message = {index: [*markers] for index, markers in groupby(found, attrgetter("message"))}
    replaced = [_with_placeholders(message, of_message.get(index, ())) for index, message in enumerate(messages)]
    return replaced, [next(waiting[marker.kind]) for marker in found]


def _with_placeholders(message: Message, markers: Sequence[_Marker]) -> Message:
    """Return a message with a placeholder in place of each of its markers."""
    if not markers:
        return message
    texts, start = list[str](), 0
    for marker in markers:
        texts += [message["content"][start : marker.start], KINDS[marker.kind].placeholder]
        start = marker.end
    return {**message, "content": "".join([*texts, message["content"][start:]])}


def amounts(kinds: Sequence[str]) -> str:
    """Say how many media of each kind these are: `2 images, 1 video`."""
    return ", ".join(amount(n, kind) for kind, n in sorted(Counter(kinds).items())) or "no media"


def _media_of_markers(found: Sequence[_Marker], kinds: Sequence[str], kind: str) -> list[int] | None:
    """Return for each marker of a kind its medium, as an index into `kinds`; None: it is not certain."""
    media = [index for index, each in enumerate(kinds) if each == kind]
    markers = [marker for marker in found if marker.kind == kind]
    if len(markers) != len(media) or any(marker.is_closed for marker in markers):
        return None
    if len({re.sub(r"\d+", "#", marker.text) for marker in markers}) != 1:
        return None
    numbers = [marker.number for marker in markers if marker.number is not None]
    if not numbers:
        return media
    first = min(numbers)
    is_whole = sorted(numbers) == [*range(first, first + len(media))] and first in (0, 1)
    return [media[number - first] for number in numbers] if is_whole else None


def _markers_in(messages: Sequence[Message], kinds: Sequence[str]) -> Iterator[_Marker]:
    for index, message in enumerate(messages):
        if message["role"] not in ("user", "document") or not _is_question(message) or "<" not in message["content"]:
            continue
        text = CODE.sub(lambda found: "." * len(found[0]), message["content"])
        closed = {found[1]: found.start() for found in _CLOSING_TAG.finditer(text)}
        alone = {found.start(1) for found in _ALONE_IN_LINE.finditer(text)}
        for found in _MARKER.finditer(text):
            kind = IMAGE.kind if found[2].lower() == "img" else found[2].lower()
            is_closed = closed.get(found[0][1:-1], -1) >= found.end()
            is_markup = _TAG_OF_MARKUP.fullmatch(found[0]) and found.start() and found.start() not in alone
            is_name = found[0].lower() == f"<{found[2].lower()}>"
            if kind in kinds and found[0] not in _PLACEHOLDERS and not is_markup and not (is_name and is_closed):
                number = None if found[4] is None else int(found[4])
                yield _Marker(index, found.start(), found.end(), found[0], kind, number, is_closed)


def _is_question(message: Mapping[str, object]) -> bool:
    return message["role"] != "assistant" and isinstance(message["content"], str)


def _kind_of(found: re.Match[str]) -> str:
    return next(filter(None, found.groups()))
