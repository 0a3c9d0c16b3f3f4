"""Rewrites the places of media that a text marks in another tool's spelling as our placeholders. Pure.

    <ImageHere> <image_placeholder> <|image|>     they are `<image>`
    <image_1> <image 2> <|image_3|>               so are these if they number all media, in order; else they are names
    (<image>./</image>)                           MiniCPM-V's `<image>`

Only a sample that has media, and no placeholder, is searched for the first two: elsewhere markers are letters, as in
code, and so is what HTML and React have, too (`<img>`, `<Image/>`).
"""

import re
from collections.abc import Iterator, Sequence

from energon_pack.samples.documents import DOCUMENT
from energon_pack.samples.media.kinds import IMAGE, KINDS
from energon_pack.samples.sample import Message

#: code in Markdown: in it, all tags are letters
CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)
_KINDS = "|".join(KINDS)
_MARKER = re.compile(
    r"(?:<\|(?:vision_start|audio_bos|begin_of_(?:image|video|audio))\|>)?"
    rf"<(?P<bar>\|?)(?P<kind>img|{_KINDS})(?!>)(?:[ _-]?(?:here|placeholder|token|pad))?"
    r"(?:[ _-]?(?P<number>\d{1,3}))?(?P=bar)>(?:<\|(?:vision_end|audio_eos|end_of_(?:image|video|audio))\|>)?",
    re.IGNORECASE,
)
_CODE_OR_MARKER = re.compile(f"{CODE.pattern}|{_MARKER.pattern}", CODE.flags | _MARKER.flags)
_CLOSING_TAG = re.compile(r"</([^<>]*)>")
_MINICPM = re.compile(rf"\(<({_KINDS})>\./</\1>\)|<({_KINDS})>\./</\2>")


def without_minicpm_marks(text: str) -> str:
    """Return a text with `<image>` for MiniCPM-V's `(<image>./</image>)`, and so for other kinds."""
    return _MINICPM.sub(lambda found: f"<{found[1] or found[2]}>", text) if "./</" in text else text


def with_placeholders_for_markers(
    messages: Sequence[Message], kinds: Sequence[str], answers: Sequence[Message] = ()
) -> list[Message]:
    """Put placeholders where the questions have markers in another tool's spelling.

    Markers with numbers stay if they are names: an answer has them, too, or they do not number all media in order.

    Args:
        messages: a conversation without placeholders.
        kinds: the kind of each medium.
        answers: other answers to these questions.
    """
    asked = [message["content"] for message in messages if _is_question(message)]
    found = [marker for text in asked for marker in _markers(text, kinds)]
    said = [m["content"] for m in (*messages, *answers) if m["role"] == "assistant" and isinstance(m["content"], str)]
    in_answers = [marker for text in said for marker in _markers(text, kinds)]
    is_numbered = any(marker["number"] for marker in found)
    if not found or (is_numbered and (in_answers or not _number_all(found, kinds))):
        return [*messages]

    def placed(text: str) -> str:
        starts = {marker.start() for marker in _markers(text, kinds)}
        return _CODE_OR_MARKER.sub(lambda one: f"<{_kind_of(one)}>" if one.start() in starts else one[0], text)

    return [{**m, "content": placed(m["content"])} if _is_question(m) else m for m in messages]


def _number_all(found: Sequence[re.Match[str]], kinds: Sequence[str]) -> bool:
    """Tell whether markers, of each kind that the sample has, number all media of it, from 0 or 1 on."""
    for kind in {*kinds}:
        numbers = [int(marker["number"] or -1) for marker in found if _kind_of(marker) == kind]
        num = list(kinds).count(kind)
        if numbers not in ([*range(num)], [*range(1, num + 1)]):
            return False
    return True


def _markers(text: str, kinds: Sequence[str]) -> Iterator[re.Match[str]]:
    """Yield the markers of media of these kinds that are neither in code nor closed behind, as XML is."""
    closed = {*_CLOSING_TAG.findall(text)} if "</" in text else ()
    for found in _CODE_OR_MARKER.finditer(text) if "<" in text else ():
        if found["kind"] and _kind_of(found) in kinds and found[0][1:-1] not in closed:
            yield found


def _kind_of(marker: re.Match[str]) -> str:
    name = marker["kind"].lower()
    return IMAGE.kind if name == "img" else name


def _is_question(message: Message) -> bool:
    return message["role"] in ("user", DOCUMENT) and isinstance(message["content"], str)
