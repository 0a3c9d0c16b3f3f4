"""Translate other tools' spellings of a JSONL line for `parse_record`, and COCO's captions.

`parse_row` reads media that a line lists under keys of its own:

    {"images": ["a.jpg", ["f0.jpg", "f1.jpg"]], "video": {"path": "b.mp4"}, "messages": […]}

`with_coco_image_name` gives each caption of such a file the name of its image:

    {"images": [{"id": 7, "file_name": "7.jpg"}], "annotations": [{"image_id": 7, "caption": "A cat."}]}
"""

import json
import mmap
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from energon_pack.run.bounded_memory import LruCache
from energon_pack.run.untrusted_input import parse_json
from energon_pack.samples.dialects.media_in_text import is_name_of_file, refuse_url
from energon_pack.samples.dialects.pairs import refuse_answer_without_options
from energon_pack.samples.dialects.rewrite import rewrite_record, with_keys_renamed, with_renamed_turn_keys
from energon_pack.samples.dialects.table import Dialect, turns_of_question
from energon_pack.samples.frames import frame_list_settings
from energon_pack.samples.media.kinds import AUDIO, IMAGE, MEDIA_KEYS, PART_TYPES, VIDEO
from energon_pack.samples.media.medium import RATE_KEYS
from energon_pack.samples.media_marks import empty_media_keys_by_kind, replace_minicpm_marks
from energon_pack.samples.media_parts import is_document_with_named_pictures
from energon_pack.samples.placeholders import flat_content, num_text_placeholders
from energon_pack.samples.record import Record, parse_rewritten_record
from energon_pack.samples.sample import Message
from energon_pack.samples.settings import Frames, ReadSettings
from energon_pack.samples.skip import Reason, Skip, value_of_synonyms
from energon_pack.sources.storage import File

_PATH_KEYS = ("path", "url", *PART_TYPES)  # keys with the path, in an entry that is an object
_ROLE_TAGS = {
    "user_tag": "user",
    "assistant_tag": "assistant",
    "observation_tag": "tool",
    "function_tag": "function_call",
    "system_tag": "system",
}
_OF_COLUMNS = Dialect("columns of a meta file", ("prompt",), turns_of_question, ("query", "history"))


@dataclass(frozen=True)
class RowSettings:
    """How the rows of one file are read, as a meta file of LLaMA-Factory or Automodel can set it."""

    media_root: str
    #: field → its name in this file
    columns: tuple[tuple[str, str], ...] = ()
    #: `role_tag`, `user_tag` … → how a message spells it
    tags: tuple[tuple[str, str], ...] = ()
    #: how often each sample comes in an epoch
    ratio: float = 1.0
    #: whether media may lie on any object store; else only on the store of `media_root`
    remote_media: bool = False
    #: where media lie now, by the beginnings of their names (`sources.media_files`)
    media_map: tuple[tuple[str, str], ...] = ()

    @property
    def identity(self) -> dict[str, Any]:
        """Return the settings that an index of the file depends on; a map only where there is one."""
        return {name: value for name, value in asdict(self).items() if name != "media_map" or value}


@dataclass(frozen=True)
class _ListedMedium:
    """One entry of a sample's list of media: one file, or the frames of a video."""

    key: str  # it is listed under this one, as `videos`
    paths: list[str]
    is_frames: bool  # it is a list of files
    frames: list[int] | None = None  # the chosen frames of a video

    @property
    def is_video(self) -> bool:
        """Whether it is listed as a video."""
        return self.key in VIDEO.keys

    @property
    def is_sound(self) -> bool:
        return self.key in AUDIO.keys


def parse_row(value: Any, rows: RowSettings, settings: ReadSettings) -> Record:
    """Parse the JSON value of a line into a record, whose `listed_media` are the paths of its media; raises Skip.

    A list of frames under `images` becomes images in place of its `<video>`; one under `videos` stays one video.
    """
    value = rewrite_record(value, settings)
    if isinstance(value, dict):
        value = {**_null_media_columns(settings), **_renamed_fields(value, rows, settings)}
        empty = empty_media_keys_by_kind(value, settings)
        listed = [medium for key in MEDIA_KEYS if key in value for medium in _listed_media(value.pop(key), key)]
    else:
        listed, empty = [], {}
    record = parse_rewritten_record(value, settings, [path for medium in listed for path in medium.paths])
    record.listed_by_kind = [(medium.key, path) for medium in listed if not medium.is_frames for path in medium.paths]
    record.empty_media = {**record.empty_media, **empty}
    if not listed:
        names = record.listed_media or []
        if is_document_with_named_pictures(record):  # each is looked up where it stands
            record.listed_media = [name.removeprefix("file://") for name in names]
        else:
            record.listed_media = [_path_of_media_entry(name, "a message") for name in names] or None
        return record
    _refuse_unlisted_media(record, [path for medium in listed for path in medium.paths])
    record.messages, placed = _with_images_for_frames(record.messages, listed)
    if settings.frames is Frames.video and not any(record.fields.get("patch_positions") or ()):
        _note_frame_lists(record, placed)
    if placed != listed and any(record.fields.get("patch_positions") or ()):
        raise Skip(Reason.PLACEHOLDER_MISMATCH, "patch_positions, and frames and images in another order in the text")
    record.listed_media = [path for medium in placed for path in medium.paths]
    chosen = [medium.frames for medium in listed if medium.is_video and not medium.is_frames]
    if any(chosen):
        spelled = {"video_frames": record.fields.get("video_frames"), "frame_indices": chosen}
        record.fields["video_frames"] = value_of_synonyms(spelled, [*spelled])
    return record


def _null_media_columns(settings: ReadSettings) -> dict[str, None]:
    """Return a null for each column of media that `source.columns` names: a record that lacks it has lost its media."""
    return {key: None for key in MEDIA_KEYS if getattr(settings.columns, key, None) is not None}


def _refuse_unlisted_media(record: Record, paths: Sequence[str]) -> None:
    """Raise Skip if `name` or a content part names a file that the sample's lists of media (`paths`) lack."""
    contents = [message["content"] for message in record.messages if isinstance(message["content"], list)]
    in_parts = [part["name"] for content in contents for part in content if "name" in part]
    for name in [*(record.listed_media or ()), *in_parts]:
        if not any(is_name_of_file(name, path) for path in paths):
            where = "a content part" if name in in_parts else "name, or media_files,"
            detail = f"{where} names {name[:80]!r}, and the sample lists {paths[0][:80]!r}: leave one of them out"
            raise Skip(Reason.BAD_MESSAGE, detail)


def _listed_media(value: Any, key: str) -> Iterator[_ListedMedium]:
    for entry in value if isinstance(value, list) else [value]:
        if entry is None or entry == "" or (isinstance(entry, bool) and key in AUDIO.keys):
            continue
        is_frames = isinstance(entry, list)
        paths = [_path_of_media_entry(item, key) for item in (entry if is_frames else [entry])]
        frames = entry.get("frame_indices") if isinstance(entry, dict) else None
        yield _ListedMedium(key, paths, is_frames, frames)


def _path_of_media_entry(entry: Any, key: str) -> str:
    if isinstance(entry, dict):
        entry = value_of_synonyms(entry, _PATH_KEYS, f"{key}[].") or entry
    if not isinstance(entry, str) or not entry:
        raise Skip(Reason.MISSING_MEDIA, f"{key} lists something that is no path: {str(entry)[:80]}")
    refuse_url(entry, f"{key} lists")
    return entry.removeprefix("file://")


def _note_frame_lists(record: Record, placed: list[_ListedMedium]) -> None:
    """Note in the field `media_settings` which images are the frames of one video, and their rate per second."""
    lists = [medium for medium in placed if medium.is_frames and medium.is_video]
    if not lists:
        return
    rates = {key: record.fields[key] for key in ("fps", *RATE_KEYS) if record.fields.get(key) is not None}
    settings = record.fields.get("media_settings") or [None] * len(placed)
    if not isinstance(settings, list) or len(settings) != len(placed):
        detail = f"media_settings is no list of {len(placed)} entries, one a medium: {str(settings)[:80]}"
        raise Skip(Reason.BAD_MESSAGE, detail)
    waiting = iter(_rates_of_videos(rates, len(lists)))
    each: list[Any] = []
    for medium, each_own in zip(placed, settings, strict=True):
        num = len(medium.paths)
        is_list = medium.is_frames and medium.is_video
        each.append(frame_list_settings(num, {**next(waiting), **(each_own or {})}) if is_list else each_own)
        each += [None] * (num - 1)
    record.fields["media_settings"] = each


def _rates_of_videos(rates: Mapping[str, Any], num: int) -> list[dict[str, Any]]:
    """Return the frame rates of each of `num` videos: a field has one rate for all videos, or a list of `num` rates."""
    listed = {key: value if isinstance(value, list) else [value] * num for key, value in rates.items()}
    if wrong := next((key for key, value in listed.items() if len(value) != num), None):
        raise Skip(Reason.BAD_MESSAGE, f"{wrong} is no list of {num} numbers, one for each list of frames")
    return [{key: value[i] for key, value in listed.items()} for i in range(num)]


def _with_images_for_frames(
    messages: list[Message], listed: list[_ListedMedium]
) -> tuple[list[Message], list[_ListedMedium]]:
    """Replace each `<video>` that stands for listed frames by as many `<image>`, if each video has one `<video>`.

    Returns:
        The messages, and the media in the order of their placeholders.
    """
    videos = [medium for medium in listed if medium.is_video or medium.is_frames]
    asked = [m for m in messages if m["role"] != "assistant"]
    if not any(medium.is_frames for medium in videos) or sum(map(_num_videos, asked)) != len(videos):
        return messages, listed
    images = (medium for medium in listed if not (medium.is_video or medium.is_frames or medium.is_sound))
    waiting = {"<video>": iter(videos), "<image>": images}
    placed: list[_ListedMedium] = []

    def mark(placeholder: str) -> str:
        medium = next(waiting[placeholder], None)
        placed.extend([medium] if medium else [])
        return "<image>" * len(medium.paths) if medium and medium.is_frames else placeholder

    def parts(part: Message) -> list[Message]:
        marks = 1 if part["type"] == "text" else mark(f"<{part['type']}>").count("<image>")
        if part["type"] != VIDEO.kind or not marks:
            return [part]
        return [{**part, "type": IMAGE.kind}, *[{"type": IMAGE.kind}] * (marks - 1)]

    def marked(content: Any) -> Any:
        if isinstance(content, str):
            return re.sub("<image>|<video>", lambda matched: mark(matched[0]), replace_minicpm_marks(content))
        return flat_content([new for part in content for new in parts(part)])

    messages = [m if m["role"] == "assistant" else {**m, "content": marked(m["content"])} for m in messages]
    rest = list(images)
    if rest and num_text_placeholders([m for m in messages if m["role"] == "assistant"]):
        raise Skip(Reason.PLACEHOLDER_MISMATCH, "frames of a video, and images in the assistant's turns")
    return messages, [*placed, *rest, *(medium for medium in listed if medium.is_sound)]


def _num_videos(message: Message) -> int:
    content = message["content"]
    if isinstance(content, str):
        return int(content.count("<video>"))
    return sum(part["type"] == VIDEO.kind for part in content)


# ------------------------------------------------------------------------------- columns and tags of a meta file


def _renamed_fields(value: Mapping[str, Any], rows: RowSettings, settings: ReadSettings) -> dict[str, Any]:
    """Rename a line's fields to the names for `parse_record`, by the columns and tags of its meta file."""
    columns = dict(rows.columns)
    value = with_keys_renamed(value, columns)
    answer = value.get("response")  # preference data has none, and perhaps no text as a prompt
    is_asked = answer is not None or any(isinstance(value.get(key), str) and value[key] for key in ("prompt", "query"))
    if "prompt" in columns and "prompt" in value and not value.get("messages") and is_asked:
        answers = [] if answer is None else [{"role": "assistant", "content": answer}]
        turns = _OF_COLUMNS.make_turns(value, _OF_COLUMNS)
        refuse_answer_without_options(value, turns[-1]["content"], answer)
        value["messages"] = [*turns, *answers]
        value = {key: item for key, item in value.items() if key not in ("prompt", "query", "response", "history")}
    if not rows.tags:
        return value
    tags = dict(rows.tags)
    roles = {tags[name]: role for name, role in _ROLE_TAGS.items() if name in tags}
    keys = {"role": tags.get("role_tag"), "content": tags.get("content_tag")}
    return with_renamed_turn_keys(value, settings, keys, roles)


# --------------------------------------------------------------------------------------------- captions of COCO


#: the beginning of a file with captions of COCO
_FIRST_KEY = re.compile(rb'(\xef\xbb\xbf)?\s*\{\s*"(info|licenses|images|annotations|type|categories)"\s*:\s*["[{]')
_NUM_HEAD_BYTES = 512
_IMAGE_ID = re.compile(rb'"image_id"\s*:')
_IMAGES_KEY = re.compile(rb'"images"\s*:\s*(?=\[)')

#: path and version of a file → name of each image; None: the file has no COCO captions
_image_names_of: LruCache[tuple[str, str], tuple[dict[int, str] | None]] = LruCache(4)


def is_coco(file: File) -> bool:
    """Tell whether a file is one JSON object with COCO captions."""
    if not _FIRST_KEY.match(file.read(0, min(file.size, _NUM_HEAD_BYTES))):
        return False
    with memory_mapped(file) as data:
        return data.find(b'"annotations"') >= 0 and data.find(b'"caption"') >= 0


def with_coco_image_name(record: bytes, source_file: File, source_path: str) -> bytes:
    """Return a sample's JSON with the file name of its image if it is a COCO caption; any other JSON unchanged."""
    if not _IMAGE_ID.search(record):
        return record
    kept = _image_names_of.get((source_path, source_file.version)) or _image_names_of.put(
        (source_path, source_file.version), (_image_names(source_file),)
    )
    if kept[0] is None:
        return record
    try:
        value = parse_json(record)
    except ValueError:  # reading the record reports it
        return record
    if not isinstance(value, dict) or "caption" not in value:
        return record
    number = value.get("image_id")
    name = kept[0].get(number) if isinstance(number, int) else None
    if name is None:
        raise Skip(Reason.MISSING_MEDIA, f"image_id {number!r} is none of `images`")
    return json.dumps({"image": name, "caption": value["caption"]}).encode()


def _image_names(file: File) -> dict[int, str] | None:
    if not is_coco(file):
        return None
    with memory_mapped(file) as data:
        begin = _IMAGES_KEY.search(data)
        text = "[]" if begin is None else data[begin.end() :].decode("utf-8", "replace")
    try:
        images, _ = json.JSONDecoder().raw_decode(text)
        return {image["id"]: str(image["file_name"]) for image in images}
    except (ValueError, KeyError, TypeError):
        return {}  # damaged: each caption then reports that its image is missing


@contextmanager
def memory_mapped(file: File) -> "Iterator[mmap.mmap | bytes]":
    """Yield all bytes of a file: mapped into memory, or read if the file has no descriptor."""
    if file.fd is None:
        yield file.read(0, file.size)
        return
    with mmap.mmap(file.fd, 0, access=mmap.ACCESS_READ) as data:
        yield data
