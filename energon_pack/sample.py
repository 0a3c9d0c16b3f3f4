"""One sample, independent of any model: its parts, the reasons to leave it out, and where its media stand in the text.

messages + kinds of the media ──place_media──► messages whose placeholders match the media, one to one
                              ──split_content──► the same as a chat template takes them
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any, NamedTuple

from energon_pack.samples.media.formats import kind_by_name

Message = dict[str, Any]

PLACEHOLDERS = {"image": "<image>", "video": "<video>"}
_PLACEHOLDER = re.compile("<(image|video)>")


class Reason(str, Enum):
    """Why a sample is in no pack. The words of `skipped.jsonl`."""

    MISSING_JSON = "missing_json"
    INVALID_JSON = "invalid_json"
    NOT_AN_OBJECT = "not_an_object"
    NO_MESSAGES = "no_messages"
    BAD_MESSAGE = "bad_message"
    NO_ASSISTANT_TURN = "no_assistant_turn"
    UNSUPPORTED_MEDIA = "unsupported_media"
    MISSING_MEDIA = "missing_media"
    UNREADABLE_MEDIA = "unreadable_media"
    PLACEHOLDER_MISMATCH = "placeholder_mismatch"
    DUPLICATE_KEY = "duplicate_key"
    NON_ADJACENT_MEMBER = "non_adjacent_member"
    CONTROL_TOKEN = "control_token"
    PROCESSOR_ERROR = "processor_error"
    TRUNCATED_TAR = "truncated_tar"
    OVERLONG = "overlong"
    OVER_CAP = "over_cap"
    NOT_IN_FLAVOR = "not_in_flavor"

    @property
    def is_policy(self) -> bool:
        """A choice of the settings, not a fault of the data: does not count against `max_skipped`."""
        return self in (Reason.OVERLONG, Reason.OVER_CAP, Reason.NOT_IN_FLAVOR)


class Skip(Exception):
    """This sample, and only this one, is left out."""

    def __init__(self, reason: Reason, detail: str):
        super().__init__(reason, detail)
        #: what the sample seems to be, as far as that was seen
        self.media_type: str | None = None
        self.reason = reason
        self.detail = " ".join(detail.split())[:300]

    def __str__(self) -> str:
        return f"{self.reason.value}: {self.detail}"


class Part(NamedTuple):
    """One file of a sample: where its bytes are in the shard, or in a file of their own that its name names."""

    name: str
    offset: int
    size: int


class MediaPart(NamedTuple):
    """A part that was looked at: a medium."""

    name: str
    offset: int
    size: int
    kind: str  # image | video
    extension: str  # of the content


AnyPart = Part | MediaPart


def media_type_by_name(names: Sequence[str]) -> str | None:
    """What a sample seems to be by the names of its parts; None where there are no media."""
    kinds = [kind for name in names if (kind := kind_by_name(name))]
    return media_type(kinds) if kinds else None


def media_type(kinds: Sequence[str]) -> str:
    """`text`, `image`, `video`, or `mix` where a sample has both."""
    present = set(kinds)
    return present.pop() if len(present) == 1 else ("mix" if present else "text")


# ------------------------------------------------------------------------------------------ placeholders and media


def spells_placeholder(text: str) -> bool:
    """Whether a text holds `<image>` or `<video>`."""
    return _PLACEHOLDER.search(text) is not None


def num_placeholders(messages: Sequence[Message]) -> int:
    """How many `<image>` and `<video>` the texts of a conversation spell."""
    texts = (m["content"] for m in messages if isinstance(m["content"], str))
    return sum(len(_PLACEHOLDER.findall(text)) for text in texts)


def place_media(messages: Sequence[Message], kinds: Sequence[str]) -> tuple[list[Message], list[int], bool]:
    """Match the placeholders of a conversation with its media.

    Args:
        messages: as in `Record.messages`.
        kinds: `image` or `video` for each medium, in the order the sample lists them.

    Returns:
        The messages as they are stored and rendered, the order of the media by their placeholders (indices into
        `kinds`), and whether the placeholders had to be put in (at the start of the first user turn).

    A placeholder of a kind of which the sample has no media is text. Where the assistant's turns spell more
    placeholders than there are media and the other turns fit exactly, those of the assistant are text.

    Raises:
        Skip: `placeholder_mismatch`.
    """
    messages = [_without_names(message) for message in messages]
    if not kinds:
        return messages, [], False
    found = [kind for message in messages for kind in _placeholders(message, kinds)]
    inserted = False
    if sorted(found) != sorted(kinds):
        spoken_to = [k for m in messages if m["role"] != "assistant" for k in _placeholders(m, kinds)]
        if sorted(spoken_to) == sorted(kinds):
            found = spoken_to
        elif found or num_placeholders([m for m in messages if m["role"] == "user"]):
            spelled = [k for m in messages for k in _placeholders(m, tuple(PLACEHOLDERS))]
            raise Skip(Reason.PLACEHOLDER_MISMATCH, f"{_count(spelled)} in the text for {_count(kinds)}")
        else:
            messages, inserted, found = _put_in(messages, kinds), True, list(kinds)
    waiting = {kind: [i for i, k in enumerate(kinds) if k == kind] for kind in PLACEHOLDERS}
    return messages, [waiting[kind].pop(0) for kind in found], inserted


def split_content(messages: Sequence[Message], kinds: Sequence[str]) -> list[Message]:
    """Stored messages as a chat template takes them: placeholders become content parts of their own.

    Args:
        messages: as `place_media` returned them.
        kinds: the media in the order of their placeholders.
    """
    if not kinds:
        return list(messages)
    found = [_placeholders(message, kinds) for message in messages]
    in_all = sum(map(len, found))
    result = []
    for message, here in zip(messages, found, strict=True):
        literal = message["role"] == "assistant" and in_all != len(kinds)
        content = message["content"]
        if here and not literal and isinstance(content, str):
            content = _parts(content, kinds)
        result.append({**message, "content": content})
    return result


def flat_content(parts: list[Message]) -> str | list[Message]:
    """Content parts as a string with placeholders; as they are where a text spells a placeholder or media are named."""
    texts = [part["text"] for part in parts if part["type"] == "text"]
    if any("name" in part for part in parts) or any(map(spells_placeholder, texts)):
        return parts
    return "".join(part["text"] if part["type"] == "text" else PLACEHOLDERS[part["type"]] for part in parts)


def kind_of_parts(conversations: Iterable[Any]) -> str | None:
    """What the content parts of conversations stand for; None: all of it is text. A part is never text as `<image>` is.

    Args:
        conversations: lists of messages that were read well; what is no such list has no parts.
    """
    turns = (turn for turns in conversations if isinstance(turns, list) for turn in turns if isinstance(turn, dict))
    contents = (turn.get("content", turn.get("value")) for turn in turns)
    parts = (part for content in contents if isinstance(content, list) for part in content)
    kinds = {kind for part in parts if (kind := str(part.get("type", "text")).removesuffix("_url")) != "text"}
    return media_type([*kinds]) if kinds else None


def _parts(content: str, kinds: Sequence[str]) -> list[Message]:
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


def _placeholders(message: Message, kinds: Sequence[str]) -> list[str]:
    content = message["content"]
    if isinstance(content, str):
        return [kind for kind in _PLACEHOLDER.findall(content) if kind in kinds]
    return [part["type"] for part in content if part["type"] != "text"]


def _put_in(messages: list[Message], kinds: Sequence[str]) -> list[Message]:
    for index, message in enumerate(messages):
        if message["role"] == "user":
            content = message["content"]
            if isinstance(content, str):
                content = "".join(PLACEHOLDERS[kind] for kind in kinds) + content
            else:
                content = [{"type": kind} for kind in kinds] + content
            return [*messages[:index], {**message, "content": content}, *messages[index + 1 :]]
    raise Skip(Reason.PLACEHOLDER_MISMATCH, f"no placeholder and no user turn for {_count(kinds)}")


def _without_names(message: Message) -> Message:
    content = message["content"]
    if isinstance(content, str) or not any("name" in part for part in content):
        return message
    parts = [{key: part[key] for key in part if key != "name"} for part in content]
    return {**message, "content": flat_content(parts)}


def _count(kinds: Sequence[str]) -> str:
    return ", ".join(f"{n} {kind}" for kind, n in sorted(Counter(kinds).items())) or "no media"
