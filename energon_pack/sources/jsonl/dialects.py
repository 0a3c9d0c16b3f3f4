"""A line of JSONL as other tools spell it, put into the words of `parse_record`: media, columns, tags of roles. Pure.

{"images": ["a.jpg", ["f0.jpg", "f1.jpg"]], "video": {"path": "b.mp4"}, "messages": […]}
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from energon_pack.run.stores import is_address
from energon_pack.samples.record import Record, parse_record
from energon_pack.samples.sample import Message
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Reason, Skip

_FIELDS = ("images", "image", "videos", "video")
_PATHS = ("path", "url", "image", "video", "image_url", "video_url")  # of an entry that is an object
_ROLE_TAGS = {
    "user_tag": "user",
    "assistant_tag": "assistant",
    "observation_tag": "tool",
    "function_tag": "function_call",
    "system_tag": "system",
}


@dataclass(frozen=True)
class Lines:
    """How the samples of a JSONL file are read; names are those of LLaMA-Factory's and Automodel's meta files."""

    media_root: str
    #: field → what it is called in this file
    columns: tuple[tuple[str, str], ...] = ()
    #: `role_tag`, `user_tag` … → how a message spells it
    tags: tuple[tuple[str, str], ...] = ()
    #: how often a sample is drawn
    ratio: float = 1.0


@dataclass(frozen=True)
class _Medium:
    """One entry of a list of media: a file, or the frames of a video."""

    paths: list[str]
    is_frames: bool  # a list of its own in the list
    is_video: bool  # listed as one
    frames: list[int] | None = None  # which of a video's


def parse_line(value: Any, lines: Lines, settings: ReadSettings) -> Record:
    """A line's JSON as a record, the media it names listed.

    Frames of a video that a sample lists as images take the place of its `<video>`.

    Raises:
        Skip: as `parse_record`, and `missing_media` for an entry that names no file.
    """
    if isinstance(value, dict):
        value = _in_our_words(value, lines)
        listed = [medium for key in _FIELDS for medium in _media(value.get(key), key)]
        value = {key: item for key, item in value.items() if key not in _FIELDS}
    else:
        listed = []
    record = parse_record(value, settings)
    if not listed:
        record.listed_media = [_path(name, "a message") for name in record.listed_media or ()] or None
        return record
    record.messages, placed = _with_images_for_frames(record.messages, listed)
    if placed != listed and any(record.fields.get("patch_positions") or ()):
        raise Skip(Reason.PLACEHOLDER_MISMATCH, "patch_positions, and frames and images in another order in the text")
    record.listed_media = [path for medium in placed for path in medium.paths]
    chosen = [medium.frames for medium in listed if medium.is_video and not medium.is_frames]
    if any(chosen) and "video_frames" not in record.fields:
        record.fields["video_frames"] = chosen
    return record


def _media(value: Any, key: str) -> Iterator[_Medium]:
    for entry in value if isinstance(value, list) else [value]:
        if entry is None or entry == "":
            continue
        is_frames = isinstance(entry, list)
        paths = [_path(item, key) for item in (entry if is_frames else [entry])]
        frames = entry.get("frame_indices") if isinstance(entry, dict) else None
        yield _Medium(paths, is_frames, key.startswith("video"), frames)


def _path(entry: Any, key: str) -> str:
    if isinstance(entry, dict):
        entry = next((entry[name] for name in _PATHS if isinstance(entry.get(name), str)), entry)
    if not isinstance(entry, str) or not entry:
        raise Skip(Reason.MISSING_MEDIA, f"{key} lists something that is no path: {str(entry)[:80]}")
    if is_address(entry):
        return entry
    if entry.startswith("data:") or "://" in entry[:12].replace("file://", ""):
        raise Skip(Reason.UNSUPPORTED_MEDIA, f"{key} lists {entry[:80]!r}: media are read from files")
    return entry.removeprefix("file://")


def _with_images_for_frames(messages: list[Message], listed: list[_Medium]) -> tuple[list[Message], list[_Medium]]:
    """Each `<video>` that stands for listed frames as so many `<image>`, where there is one `<video>` a video.

    Returns:
        The messages, and the media in the order of their placeholders.
    """
    videos = [medium for medium in listed if medium.is_video or medium.is_frames]
    texts = [m["content"] for m in messages if isinstance(m["content"], str) and m["role"] != "assistant"]
    if not any(medium.is_frames for medium in videos) or sum(t.count("<video>") for t in texts) != len(videos):
        return messages, listed
    images = (medium for medium in listed if not (medium.is_video or medium.is_frames))
    waiting = {"<video>": iter(videos), "<image>": images}
    placed: list[_Medium] = []

    def marks(found: re.Match[str]) -> str:
        medium = next(waiting[found[0]], None)
        placed.extend([medium] if medium else [])
        return "<image>" * len(medium.paths) if medium and medium.is_frames else found[0]

    messages = [
        {**m, "content": re.sub("<image>|<video>", marks, m["content"])}
        if isinstance(m["content"], str) and m["role"] != "assistant"
        else m
        for m in messages
    ]
    return messages, [*placed, *images]


# ------------------------------------------------------------------------------- columns and tags of a meta file


def _in_our_words(value: Mapping[str, Any], lines: Lines) -> dict[str, Any]:
    """A line under the names of `parse_record`, where a meta file says what they are called in it."""
    value = dict(value)
    for ours, theirs in lines.columns:
        if theirs in value and ours != theirs:
            value[ours] = value.pop(theirs)
    if "prompt" in dict(lines.columns) and "prompt" in value and not value.get("messages"):
        value["messages"] = _alpaca(value)
        value = {key: item for key, item in value.items() if key not in ("prompt", "query", "response", "history")}
    if lines.tags and isinstance(value.get("messages"), list):
        value["messages"] = [_in_our_tags(message, dict(lines.tags)) for message in value["messages"]]
    return value


def _alpaca(value: Mapping[str, Any]) -> list[Message]:
    asked = "\n".join(text for text in (value.get("prompt"), value.get("query")) if isinstance(text, str) and text)
    answer = [value["response"]] if value.get("response") is not None else []  # preference data has none
    pairs = [*(value.get("history") or []), [asked, *answer]]
    return [
        {"role": role, "content": text}
        for pair in pairs
        for role, text in zip(("user", "assistant"), pair if isinstance(pair, list) else [pair], strict=False)
    ]


def _in_our_tags(message: Any, tags: Mapping[str, str]) -> Any:
    if not isinstance(message, dict):
        return message
    role_key, content_key = tags.get("role_tag", "from"), tags.get("content_tag", "value")
    roles = {tags[name]: role for name, role in _ROLE_TAGS.items() if name in tags}
    rest = {key: item for key, item in message.items() if key not in (role_key, content_key)}
    spelled = message.get(role_key)
    role = roles.get(spelled, spelled) if isinstance(spelled, str) else spelled
    return {"role": role, "content": message.get(content_key), **rest}
