"""Finds placeholders in questions that stand for nothing, because the media of a sample were lost on the way. Pure.

    {"images": [], "messages": [{"role": "user", "content": "<image>What is it?"}, …]}    Skip: missing_media
    {"messages": [{"role": "user", "content": "<image>What is it?"}, …]}                  text, counted

Letters are no placeholders: in answers, in code, and before their closing tag, as in HTML (`<video>…</video>`).
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from energon_pack.samples.documents import DOCUMENT
from energon_pack.samples.markers import CODE, without_minicpm_marks
from energon_pack.samples.media.kinds import IMAGE, KINDS, MEDIA_KEYS, VIDEO
from energon_pack.samples.sample import Message
from energon_pack.samples.settings import ReadSettings, UnreadMedia
from energon_pack.samples.skip import Reason, Skip

_TAG = re.compile(f"<(/?)({'|'.join(KINDS)})>")
_LISTING_KEYS = ("media_files", "name")


def empty_media_keys(value: Mapping[str, Any], settings: ReadSettings) -> dict[str, str]:
    """Return by kind the key of a record that lists its media and is empty: `[]`, `""`, null, or a list of these.

    With `source.media=ignore` there is none. LLaVA-Video writes `<image>` for a video.
    """
    if settings.media is UnreadMedia.ignore:
        return {}
    empty: dict[str, str] = {}
    for key in (*MEDIA_KEYS, *_LISTING_KEYS):
        if key in value and is_empty_listing(value[key]) and (key != "name" or isinstance(value[key], list)):
            kinds = [kind for kind, medium in KINDS.items() if key in (*medium.keys, *_LISTING_KEYS)]
            empty = dict.fromkeys([*kinds, *([IMAGE.kind] if VIDEO.kind in kinds else [])], key) | empty
    return empty


def is_empty_listing(value: Any) -> bool:
    """Tell whether a value lists no medium: it is None, an empty text, or a list of nothing else."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, (list, tuple)):
            waiting += item
        elif item is not None and not (isinstance(item, str) and not item):
            return False
    return True


def kinds_without_medium(messages: Sequence[Message], kinds: Collection[str]) -> list[str]:
    """Return the kinds of placeholders in questions that the sample (`kinds`: its media) has no medium for."""
    asked: set[str] = set()
    for message in messages:
        if message["role"] in ("assistant", DOCUMENT):
            continue
        content = message["content"]
        for text in (content,) if isinstance(content, str) else (part.get("text", "") for part in content):
            if "<" in text and _TAG.search(text):
                asked |= _kinds_of_placeholders(text)
    return sorted(asked.difference(kinds)) if asked else []


def _kinds_of_placeholders(text: str) -> set[str]:
    """Return the kinds of the tags in a text that are neither in code nor closed behind."""
    kinds, closing = set[str](), Counter[str]()
    for is_closing, kind in reversed(_TAG.findall(CODE.sub("", without_minicpm_marks(text)))):
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

    `kinds`: the kinds of the sample's media. `empty`: as `empty_media_keys` returns it. A caption asks for any medium.
    """
    lost = [kind for kind in (kinds_without_medium(messages, kinds) if empty else ()) if kind in empty]
    if lost or (is_caption and empty and not kinds):
        kind = [*lost, *empty][0]
        asks, rest = (
            (f"{KINDS[kind].placeholder} stands in a question", "letters") if lost else ("it is a caption", "text")
        )
        detail = f"{asks}, and {empty[kind]} is empty: its medium is lost (source.media=ignore packs the {rest})"
        skip = Skip(Reason.MISSING_MEDIA, detail)
        skip.media_type = kind
        raise skip
