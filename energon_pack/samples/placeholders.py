"""Finds the places of a sample's media in its text.

messages + kinds of the media ──place_media──► messages whose placeholders match the media, one to one
                              ──split_content──► these messages as a chat template takes them
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from energon_pack.errors import amount
from energon_pack.samples.media.kinds import IMAGE, KINDS, PART_TYPES, VIDEO
from energon_pack.samples.media_marks import replace_minicpm_marks, with_placeholders_for_markers
from energon_pack.samples.sample import CONTENT_KEYS, Message, media_type
from energon_pack.samples.skip import Reason, Skip, key_of_synonyms

PLACEHOLDERS = {kind: medium.placeholder for kind, medium in KINDS.items()}
_PLACEHOLDER = re.compile(f"<({'|'.join(KINDS)})>")
_PLACEHOLDER_AND_SPACE = re.compile(rf"{_PLACEHOLDER.pattern}\s*")
_TURN_ADVICE = ": source.map can write messages, with <image> where it stands"
_PART_SETTING_KEYS = ("name", "settings")  # the key for a content part's settings of its medium


def spells_placeholder(text: str) -> bool:
    """Tell whether a text holds a placeholder, such as `<image>`."""
    return _PLACEHOLDER.search(text) is not None


def num_text_placeholders(messages: Sequence[Message]) -> int:
    """Count the placeholders, such as `<image>`, in contents that are strings."""
    texts = [text for message in messages if isinstance(text := message["content"], str) and "<" in text]
    return sum(len(_PLACEHOLDER.findall(text)) for text in texts)


def place_media(
    messages: Sequence[Message], kinds: Sequence[str], answers: Sequence[Message] = ()
) -> tuple[list[Message], list[int], bool]:
    """Match the placeholders of a conversation with its media.

    A placeholder is plain text if the sample has no media of its kind. If there are more placeholders than media, and
    those outside of the assistant's turns fit exactly, the assistant's placeholders are plain text. Where all media are
    videos, and as many `<image>` stand in the questions, these become `<video>`: so LLaVA-Video writes them.

    Args:
        messages: in them, other tools may mark the places of media in their spelling (`samples.media_marks`).
        kinds: the kind of each medium, in the order the sample lists them.
        answers: other answers to the questions, of a preference pair.

    Returns:
        The messages as they are stored and rendered, the order of the media by their placeholders (indices into
        `kinds`), and whether the placeholders had to be put in (at the start of the first user turn) or changed.
    """
    messages = [_without_names_and_settings(message) for message in messages]
    if not kinds:
        return messages, [], False
    messages = replace_foreign_placeholders(messages, kinds, answers)
    spelled_kinds = [kind for message in messages for kind in _placeholder_kinds(message, kinds)]
    inserted = False
    if sorted(spelled_kinds) != sorted(kinds):
        spoken_to = [k for m in messages if m["role"] != "assistant" for k in _placeholder_kinds(m, kinds)]
        if sorted(spoken_to) == sorted(kinds):
            spelled_kinds = spoken_to
        elif renamed := _with_video_placeholders(messages, kinds):
            messages, inserted, spelled_kinds = renamed, True, list(kinds)
        elif spelled_kinds or num_text_placeholders([m for m in messages if m["role"] == "user"]):
            spelled = [k for m in messages for k in _placeholder_kinds(m, tuple(PLACEHOLDERS))]
            raise Skip(Reason.PLACEHOLDER_MISMATCH, f"{_amounts(spelled)} in the text for {_amounts(kinds)}")
        else:
            messages, inserted, spelled_kinds = _with_placeholders(messages, kinds), True, list(kinds)
    if spelled_kinds == [*kinds]:
        return messages, [*range(len(kinds))], inserted
    waiting = {kind: [i for i, k in enumerate(kinds) if k == kind] for kind in PLACEHOLDERS}
    return messages, [waiting[kind].pop(0) for kind in spelled_kinds], inserted


def replace_foreign_placeholders(
    messages: Sequence[Message], kinds: Sequence[str], answers: Sequence[Message] = ()
) -> list[Message]:
    """Put our placeholders where questions have another tool's; `place_media` describes the arguments."""
    messages = [
        {**m, "content": replace_minicpm_marks(m["content"])}
        if m["role"] != "assistant" and isinstance(m["content"], str)
        else m
        for m in messages
    ]
    if any(_placeholder_kinds(message, tuple(PLACEHOLDERS)) for message in (*messages, *answers)):
        return messages
    return with_placeholders_for_markers(messages, kinds, answers)


def media_settings_of_parts(messages: Sequence[Message], kinds: Sequence[str]) -> list[dict[str, Any] | None]:
    """Return the settings that content parts have for their media, in the order of the placeholders.

    None: a medium has no settings. Empty: no medium has settings. `kinds`: the kind of each medium.
    """
    if not any("settings" in part for m in messages if isinstance(m["content"], list) for part in m["content"]):
        return []
    by_role = [(m["role"], settings) for m in messages for settings in _settings_of_media(m, kinds)]
    if len(by_role) != len(kinds):  # the assistant's placeholders are plain text
        by_role = [(role, settings) for role, settings in by_role if role != "assistant"]
    return [settings for _, settings in by_role]


def split_content_at_placeholders(messages: Sequence[Message], kinds: Sequence[str]) -> list[Message]:
    """Turn stored messages into messages for a chat template: each placeholder becomes a separate content part.

    `kinds`: kinds of the media in the order of their placeholders.
    """
    if not kinds:
        return list(messages)
    spelled = [_placeholder_kinds(message, kinds) for message in messages]
    in_all = sum(map(len, spelled))
    result = []
    for message, here in zip(messages, spelled, strict=True):
        literal = message["role"] == "assistant" and in_all != len(kinds)
        content = message["content"]
        if here and not literal and isinstance(content, str):
            message = {**message, "content": _content_parts(content, kinds)}
        result.append(message)
    return result


def num_media_before(messages: Sequence[Message], kinds: Sequence[str]) -> list[int]:
    """Return, for each message, the number of media in the messages before it; and last, the number in all messages."""
    counts = [0]
    for message in split_content_at_placeholders(messages, kinds):
        content = message["content"]
        counts.append(counts[-1] + (0 if isinstance(content, str) else sum(part["type"] != "text" for part in content)))
    return counts


def with_first_images_as_text(
    messages: Sequence[Message], kinds: Sequence[str], num_images: int, replacement: str
) -> list[Message]:
    """Replace the first `num_images` images of a conversation by a text. `kinds`: the kind of each medium."""
    is_literal = sum(len(_placeholder_kinds(message, kinds)) for message in messages) != len(kinds)
    result = []
    for message in messages:
        content = message["content"]
        if not (is_literal and message["role"] == "assistant"):
            content, num_images = _with_images_as_text(content, num_images, replacement)
        result.append({**message, "content": content})
    return result


def _with_images_as_text(content: str | list[Message], number: int, text: str) -> tuple[str | list[Message], int]:
    """Replace the first `number` images of a content by a text; return also how many are still to be replaced."""
    image = IMAGE.placeholder
    if isinstance(content, str):
        return content.replace(image, text, number), number - min(number, content.count(image))
    parts: list[Message] = []
    for part in content:
        is_old = part["type"] == IMAGE.kind and number > 0
        number -= is_old
        parts.append({"type": "text", "text": text} if is_old else part)
    return parts, number


def content_with_media_only(content: str | list[Message], kinds: Sequence[str]) -> str | list[Message]:
    """Return only the media of a content: placeholders with the white space after them, or content parts."""
    if isinstance(content, str):
        return "".join(match[0] for match in _PLACEHOLDER_AND_SPACE.finditer(content) if match[1] in kinds)
    return [part for part in content if part["type"] != "text"]


def with_media_first(
    media: str | list[Message], content: str | list[Message], kinds: Sequence[str]
) -> str | list[Message]:
    """Put the media that `content_with_media_only` returned before the content of a turn."""
    if isinstance(media, str) and isinstance(content, str):
        return media + content
    parts = [_content_parts(each, kinds) if isinstance(each, str) else each for each in (media, content)]
    return [*parts[0], *parts[1]]


def flat_content(parts: list[Message]) -> str | list[Message]:
    """Join content parts into one string with placeholders.

    They stay parts if a part has a name or settings, a text spells a placeholder, or white space stands where two texts
    meet.
    """
    texts = [part["text"] for part in parts if part["type"] == "text"]
    if any(key in part for key in _PART_SETTING_KEYS for part in parts) or any(map(spells_placeholder, texts)):
        return parts
    if any(map(_have_space_between, parts, parts[1:])):  # a template may strip each part
        return parts
    return "".join(part["text"] if part["type"] == "text" else PLACEHOLDERS[part["type"]] for part in parts)


def _have_space_between(part: Message, other: Message) -> bool:
    """Tell whether there is white space where two texts meet."""
    if part["type"] != "text" or other["type"] != "text":
        return False
    return bool(part["text"][-1:].isspace() or other["text"][:1].isspace())


def media_type_of_parts(conversations: Sequence[Any]) -> str | None:
    """Return the media type of the content parts in these conversations: a kind, or `mix`; None: all are text.

    Unlike `<image>` in a text, a media part is never text. Raises Skip as `_refuse_wrong_part_indices` does.
    """
    all_contents = [
        turn.get(key_of_synonyms(turn, CONTENT_KEYS))
        for turns in conversations
        if isinstance(turns, list)
        for turn in turns
        if isinstance(turn, dict)
    ]
    contents = [content for content in all_contents if isinstance(content, list)]
    if not contents:
        return None
    parts = [part for content in contents for part in content if isinstance(part, dict)]
    results = (part["content"] for part in parts if isinstance(part.get("content"), list))  # results of tools
    parts += [part for result in results for part in result if isinstance(part, dict)]
    kinds = {kind for part in parts if (kind := PART_TYPES.get(str(part.get("type"))))}
    if kinds and any(part.get("index") is not None for part in parts):
        _refuse_wrong_part_indices(all_contents)
    return media_type([*kinds]) if kinds else None


def _refuse_wrong_part_indices(contents: Iterable[Any]) -> None:
    """Raise Skip if the `index` of a part is not the number of its medium, counted among all media or among its kind.

    Parts stand for the listed media in order, and an index is not followed. It may also number all parts of a content.
    A part that names its medium needs none.
    """
    numbers: list[tuple[Any, int, int]] = []  # index, number among all media, number among its kind
    seen = Counter[str]()
    for kind, part in chain.from_iterable(map(_media_kinds_with_parts, contents)):
        index = part.get("index")
        if index is not None and not any(part.get(key) for key in (*PART_TYPES, "path", "url", "source")):
            numbers.append((index, seen.total(), seen[kind]))
        seen[kind] += 1
    if all(_index_equals(index, among_all) for index, among_all, _ in numbers):
        return
    for index, among_all, of_kind in numbers:
        if not _index_equals(index, of_kind):
            detail = f"a part for a medium has the index {index!r}, and is number {among_all} of them"
            raise Skip(Reason.BAD_MESSAGE, f"{detail}: media stand in the order of their parts (source.map sorts them)")


def _index_equals(index: Any, number: int) -> bool:
    return not isinstance(index, bool) and index in (number, str(number))


def _media_kinds_with_parts(content: Any) -> Iterator[tuple[str, Message]]:
    """Yield the kind of each medium of a content, and its part; it has an empty one if it stands as a placeholder."""
    if isinstance(content, str):
        yield from ((kind, {}) for kind in _PLACEHOLDER.findall(content))
        return
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    kinds = [PART_TYPES.get(str(part.get("type"))) for part in parts]
    numbers_all = None in kinds and [part.get("index") for part in parts] == [*range(len(parts))]
    for kind, part in zip(kinds, parts, strict=True):
        if kind is not None:
            yield kind, {} if numbers_all else part
        elif isinstance(part.get("content"), list):  # the result of a tool
            yield from _media_kinds_with_parts(part["content"])


def _content_parts(content: str, kinds: Sequence[str]) -> list[Message]:
    parts: list[Message] = []
    start = 0
    for match in _PLACEHOLDER.finditer(content):
        if match[1] in kinds:
            if match.start() > start:
                parts.append({"type": "text", "text": content[start : match.start()]})
            parts.append({"type": match[1]})
            start = match.end()
    if start < len(content):
        parts.append({"type": "text", "text": content[start:]})
    return parts


def _placeholder_kinds(message: Message, kinds: Sequence[str]) -> list[str]:
    content = message["content"]
    if isinstance(content, str):
        return [kind for kind in _PLACEHOLDER.findall(content) if kind in kinds] if "<" in content else []
    return [part["type"] for part in content if part["type"] != "text"]


def _settings_of_media(message: Message, kinds: Sequence[str]) -> list[dict[str, Any] | None]:
    content = message["content"]
    if isinstance(content, str):
        return [None for _ in _placeholder_kinds(message, kinds)]
    return [part.get("settings") for part in content if part["type"] != "text"]


def _with_video_placeholders(messages: Sequence[Message], kinds: Sequence[str]) -> list[Message] | None:
    """Return messages with `<video>` in place of each `<image>`; None: the media are not as many videos."""
    if set(kinds) != {VIDEO.kind} or any(not isinstance(message["content"], str) for message in messages):
        return None
    asked = "".join(message["content"] for message in messages if message["role"] != "assistant")
    image, video = IMAGE.placeholder, VIDEO.placeholder
    if not num_text_placeholders(messages) == asked.count(image) == len(kinds):
        return None
    return [{**message, "content": message["content"].replace(image, video)} for message in messages]


def _with_placeholders(messages: list[Message], kinds: Sequence[str]) -> list[Message]:
    for index, message in enumerate(messages):
        if message["role"] == "user":
            content = message["content"]
            if isinstance(content, str):
                content = "".join(PLACEHOLDERS[kind] for kind in kinds) + content
            else:
                content = [{"type": kind} for kind in kinds] + content
            return [*messages[:index], {**message, "content": content}, *messages[index + 1 :]]
    raise Skip(Reason.PLACEHOLDER_MISMATCH, f"no placeholder and no user turn for {_amounts(kinds)}{_TURN_ADVICE}")


def _without_names_and_settings(message: Message) -> Message:
    content = message["content"]
    if isinstance(content, str) or not any(key in part for key in _PART_SETTING_KEYS for part in content):
        return message
    parts = [{key: part[key] for key in part if key not in _PART_SETTING_KEYS} for part in content]
    return {**message, "content": flat_content(parts)}


def _amounts(kinds: Sequence[str]) -> str:
    return ", ".join(amount(n, kind) for kind, n in sorted(Counter(kinds).items())) or "no media"
