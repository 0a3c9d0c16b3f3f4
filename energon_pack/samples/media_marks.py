"""Reads what marks the places of media in texts: in another tool's spelling, or for a medium that was lost. Pure.

The marks of other tools become our placeholders:

    <ImageHere> <image_placeholder> <|image|>     they are `<image>`
    <image_1> <image 2> <|image_3|>               so are these if they number all media, in order; else they are names
    (<image>./</image>)                           MiniCPM-V's `<image>`

Only a sample that has media, and no placeholder, is searched for the first two: elsewhere markers are letters, as in
code, and so is what HTML and React have, too (`<img>`, `<Image/>`).

A placeholder in a question stands for nothing if the media of the sample were lost on the way:

    {"images": [], "messages": [{"role": "user", "content": "<image>What is it?"}, …]}    Skip: missing_media
    {"messages": [{"role": "user", "content": "<image>What is it?"}, …]}                  text, counted

Letters are no placeholders: in answers, in code, and before their closing tag, as in HTML (`<video>…</video>`).
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from energon_pack.samples.documents import DOCUMENT
from energon_pack.samples.media.kinds import IMAGE, KINDS, MEDIA_KEYS, VIDEO
from energon_pack.samples.sample import Message
from energon_pack.samples.settings import ReadSettings, UnreadMediaPolicy
from energon_pack.samples.skip import Reason, Skip

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
_TAG = re.compile(f"<(/?)({_KINDS})>")
_LISTING_KEYS = ("media_files", "name")


def replace_minicpm_marks(text: str) -> str:
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


def empty_media_keys_by_kind(record_json: Mapping[str, Any], settings: ReadSettings) -> dict[str, str]:
    """Return by kind the key of a record that lists its media and is empty: `[]`, `""`, null, or a list of these.

    With `source.media=ignore` there is none. LLaVA-Video writes `<image>` for a video.
    """
    if settings.media is UnreadMediaPolicy.ignore:
        return {}
    empty: dict[str, str] = {}
    for key in (*MEDIA_KEYS, *_LISTING_KEYS):
        if (
            key in record_json
            and is_empty_media_list(record_json[key])
            and (key != "name" or isinstance(record_json[key], list))
        ):
            kinds = [kind for kind, medium in KINDS.items() if key in (*medium.keys, *_LISTING_KEYS)]
            empty = dict.fromkeys([*kinds, *([IMAGE.kind] if VIDEO.kind in kinds else [])], key) | empty
    return empty


def is_empty_media_list(value: Any) -> bool:
    """Tell whether a value lists no medium: it is None, an empty text, or a list of nothing else."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, (list, tuple)):
            waiting += item
        elif item is not None and not (isinstance(item, str) and not item):
            return False
    return True


def placeholder_kinds_without_media(messages: Sequence[Message], media_kinds: Collection[str]) -> list[str]:
    """Return the kinds of placeholders in questions that the sample (`media_kinds`: its media) has no medium for."""
    asked: set[str] = set()
    for message in messages:
        if message["role"] in ("assistant", DOCUMENT):
            continue
        content = message["content"]
        for text in (content,) if isinstance(content, str) else (part.get("text", "") for part in content):
            if "<" in text and _TAG.search(text):
                asked |= _kinds_of_placeholders(text)
    return sorted(asked.difference(media_kinds)) if asked else []


def _kinds_of_placeholders(text: str) -> set[str]:
    """Return the kinds of the tags in a text that are neither in code nor closed behind."""
    kinds, closing = set[str](), Counter[str]()
    for is_closing, kind in reversed(_TAG.findall(CODE.sub("", replace_minicpm_marks(text)))):
        if is_closing:
            closing[kind] += 1
        elif closing[kind]:
            closing[kind] -= 1
        else:
            kinds.add(kind)
    return kinds


def refuse_lost_media(
    messages: Sequence[Message], kinds: Collection[str], empty: Mapping[str, str], is_caption: bool = False
) -> None:
    """Raise Skip (`missing_media`) if a question has a placeholder, and the record's key for its media is empty.

    `kinds`: the kinds of the sample's media. `empty`: from `empty_media_keys_by_kind`. A caption asks for any medium.
    """
    lost = [kind for kind in (placeholder_kinds_without_media(messages, kinds) if empty else ()) if kind in empty]
    if lost or (is_caption and empty and not kinds):
        kind = [*lost, *empty][0]
        asks, rest = (
            (f"{KINDS[kind].placeholder} stands in a question", "letters") if lost else ("it is a caption", "text")
        )
        detail = f"{asks}, and {empty[kind]} is empty: its medium is lost (source.media=ignore packs the {rest})"
        skip = Skip(Reason.MISSING_MEDIA, detail)
        skip.media_type = kind
        raise skip
