"""Reads what a medium of a sample is: its kind and size, from headers where headers tell them, and what is asked of it.

A sample asks for settings of its media, for lists of frames as videos, and for the sounds of videos.
"""

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, BinaryIO

from PIL import UnidentifiedImageError

from energon_pack.errors import PackError
from energon_pack.samples.bytes import ByteRange, Bytes, as_file
from energon_pack.samples.media.image_probe import probe_without_pillow
from energon_pack.samples.media.kinds import IMAGE, KINDS, VIDEO, find_media_format
from energon_pack.samples.media.medium import (
    FRAMES_KEY,
    NUMBER_OF_FRAMES_KEYS,
    PIXEL_KEYS,
    RANGE_KEYS,
    RATE_KEYS,
    SETTING_KEYS,
    SHARED_KEYS,
    Media,
    MediumSettings,
)
from energon_pack.samples.media.prepared import video_metadata
from energon_pack.samples.media.stream_probe import probe_sound_length_of_video
from energon_pack.samples.member import SampleOptions
from energon_pack.samples.sample import AnyPart
from energon_pack.samples.skip import Reason, Skip, value_of_synonyms

#: what is there instead, by its first bytes; no other bytes are shown: a record may name any file of this machine
_NON_MEDIA = {
    b"<!doctype": "it is an HTML page",
    b"<html": "it is an HTML page",
    b"version https://": "it is a pointer of Git LFS: git lfs pull gets the file",
    b"pk\x03\x04": "it is a zip archive",
    b"\x1f\x8b": "it is compressed by gzip",
    b"%pdf": "it is a PDF",
}
_DEFAULT_LIST_FPS = 2.0  # frames a second of a list of frames without a rate, as in qwen_vl_utils


def probe_part(file: Bytes, part: AnyPart) -> Media:
    """Read kind and size of the medium in a part of a file, as `probe` does; an error names the part."""
    plain = probe_without_pillow(file, part.offset, part.size)
    if plain is not None:
        return plain
    try:
        return probe(as_file(ByteRange(file, part.offset, part.size)))
    except Skip as skip:
        raise Skip(skip.reason, f"{part.name}: {skip.detail}") from None


def probe(file: BinaryIO) -> Media:
    """Read kind and size of a medium; the content decides its kind, not the name.

    Raises:
        Skip: `unreadable_media`, or `unsupported_media` without PyAV.
    """
    head = file.read(16)
    container = find_media_format(head)
    try:
        if container is not None and container.kind != IMAGE.kind:
            return KINDS[container.kind].probe(file, container)
        file.seek(0)
        return IMAGE.probe(file)  # Pillow tries all of its formats, which takes as long as the header of a sound
    except UnidentifiedImageError:
        what = next((f"; {what}" for magic, what in _NON_MEDIA.items() if head.lower().startswith(magic)), "")
        raise Skip(Reason.UNREADABLE_MEDIA, f"no known image or video{what}") from None
    except (Skip, PackError):
        raise
    except Exception as error:  # a class of another package may raise anything, and it costs only its sample
        raise Skip(Reason.UNREADABLE_MEDIA, str(error)[:200] or type(error).__name__) from None


def with_requested_settings(
    media: Sequence[Media],
    video_frames: Any,
    options: SampleOptions,
    opened: Callable[[int], BinaryIO] | None = None,
) -> list[Media]:
    """Return a sample's media with the settings, chosen frames and sounds that its fields ask for.

    Args:
        video_frames: the sample's field `video_frames`: for each video the ascending indices of its frames, or null.
        opened: opens the medium with an index; needed if the sound of videos is used.
    """
    if options.media and len(options.media) != len(media):
        raise Skip(Reason.BAD_MESSAGE, f"media_settings has {len(options.media)} entries for {len(media)} media")
    result = list(media)
    if any(options.media) or options.all_media:
        each = options.media or [None] * len(media)
        settings = [read_medium_settings(item, options.all_media, m.kind) for m, item in zip(media, each, strict=True)]
        result = [m if item is None else replace(m, settings=item) for m, item in zip(media, settings, strict=True)]
        _check_frame_lists(result, each)
    result = result if video_frames is None else _with_frames(result, video_frames)
    if not options.use_audio_in_video:
        return result
    assert opened is not None, "videos are to be heard, and nothing opens them"
    return [_with_sound(m, opened(index)) if m.kind == VIDEO.kind else m for index, m in enumerate(result)]


def _with_sound(video: Media, file: BinaryIO) -> Media:
    """Return a video with its sound; like processors, return a silent video unchanged."""
    if video.settings is not None and video.settings.sets_start_or_end:
        detail = (
            "the sound of a part of a video is not heard: take out video_start and video_end, or use_audio_in_video"
        )
        raise Skip(Reason.UNSUPPORTED_MEDIA, detail)
    track = probe_sound_length_of_video(file)
    return video if track is None else replace(video, num_samples=track[0], rate=track[1])


def first_and_num_frames(video: Media) -> tuple[int, int]:
    """Return the index of the first frame between `video_start` and `video_end`, and the number of frames there.

    Without these settings, it is the whole video. Raises Skip if fewer than two frames are left.
    """
    settings, total = video.settings, video.num_frames
    if settings is None or not settings.sets_start_or_end:
        return 0, total
    seconds = total / video.fps
    start, end = (
        None if value is None else max(0.0, min(value, seconds)) for value in (settings.video_start, settings.video_end)
    )
    first = 0 if start is None else math.ceil(start * video.fps)
    last = total - 1 if end is None else min(math.floor(end * video.fps), total - 1)
    if first >= last:
        detail = f"video_start={settings.video_start}, video_end={settings.video_end}: no two frames"
        raise Skip(Reason.UNREADABLE_MEDIA, f"{detail} of a video of {seconds:.2f} seconds")
    return first, last - first + 1


def num_frames_to_choose_from(video: Media) -> float:
    """Return the number of frames from which a video's frames are chosen.

    For a list of frames, it is the number that the video itself has in the same time, perhaps a fraction.
    """
    settings = video.settings
    if settings is not None and settings.sample_fps is not None:
        return video.num_frames / settings.sample_fps * video.fps
    return first_and_num_frames(video)[1]


def has_frame_lists(media: Sequence[Media]) -> bool:
    """Tell whether some images are frames of a video that is listed as files."""
    return any(medium.settings is not None and medium.settings.list_of_frames is not None for medium in media)


def media_seen_by_model(media: Sequence[Media]) -> Iterator[tuple[Media, slice]]:
    """Yield the media as a model sees them: images that are frames of one video become that video.

    Each comes with its range of indices in `media`.
    """
    start = 0
    while start < len(media):
        medium = media[start]
        end = start + ((medium.settings and medium.settings.list_of_frames) or 1)
        yield _listed_video(medium) if medium.settings and medium.settings.list_of_frames else medium, slice(start, end)
        start = end


def _listed_video(first: Media) -> Media:
    """Return the video of which this image is the first listed frame."""
    settings = first.settings
    assert settings is not None
    assert settings.list_of_frames is not None
    num, rate = settings.list_of_frames, settings.sample_fps or settings.fps or _DEFAULT_LIST_FPS
    of_clip = replace(settings, sample_fps=rate, fps=None, list_of_frames=None)
    return replace(
        first, kind=VIDEO.kind, num_frames=num, fps=settings.raw_fps or rate, frames=tuple(range(num)), settings=of_clip
    )


def _check_frame_lists(media: Sequence[Media], each: Sequence[Mapping[str, Any] | None]) -> None:
    """Check that each list of frames is complete, of one size, and without settings on later frames; raises Skip."""
    for place, first in enumerate(media):
        num = first.settings.list_of_frames if first.settings else None
        if num is None:
            continue
        frames = media[place : place + num]
        if len(frames) < num or any(frame.kind != IMAGE.kind for frame in frames):
            raise Skip(Reason.BAD_MESSAGE, f"{FRAMES_KEY} is {num}: there are no {num} images from that one on")
        if of_frame := next(filter(None, each[place + 1 : place + num]), None):
            raise Skip(
                Reason.BAD_MESSAGE, f"a frame within a {FRAMES_KEY} has settings of its own: {str(of_frame)[:80]}"
            )
        if len(sizes := {(frame.width, frame.height) for frame in frames}) > 1:
            several = ", ".join(f"{width}×{height}" for width, height in sorted(sizes)[:3])
            raise Skip(Reason.UNREADABLE_MEDIA, f"the frames of a video have several sizes: {several}")


def _with_frames(media: Sequence[Media], listed: Any) -> list[Media]:
    """Return the media, each video with the frames that the sample lists for it."""
    num_videos = sum(medium.kind == VIDEO.kind for medium in media)
    if not isinstance(listed, list) or len(listed) != num_videos:
        raise Skip(Reason.BAD_MESSAGE, f"video_frames is no list of {num_videos} lists of frames: {str(listed)[:80]}")
    waiting = iter(listed)
    return [_with_frame_indices(medium, next(waiting)) if medium.kind == VIDEO.kind else medium for medium in media]


def _with_frame_indices(video: Media, frames: Any) -> Media:
    if frames is None:
        return video
    if not isinstance(frames, list) or not frames or any(type(index) is not int for index in frames):
        raise Skip(Reason.BAD_MESSAGE, f"video_frames has {str(frames)[:80]} for a video, not indices of frames")
    if frames != sorted(frames) or frames[0] < 0 or frames[-1] >= video.num_frames:
        raise Skip(
            Reason.UNREADABLE_MEDIA, f"video_frames {str(frames)[:80]} are not ascending within {video.num_frames}"
        )
    if video.settings is not None and (video.settings.sets_num_frames or video.settings.sets_start_or_end):
        raise Skip(Reason.BAD_MESSAGE, "video_frames lists the frames of a video whose settings choose others")
    return replace(video, frames=tuple(frames))


def video_metadata_of(video: Media, frames: Sequence[int] | None = None) -> dict[str, Any]:
    """Return the metadata of a video for a processor: number of frames, rate, seconds, and indices of chosen frames.

    `frames`: indices of the chosen frames; None: the processor gets all frames and chooses.
    """
    indices = range(video.num_frames) if frames is None else frames
    return video_metadata(num_frames_to_choose_from(video), video.fps, indices)


_IMAGE_KEYS = PIXEL_KEYS[:4]
_KEYS_OF_KIND = {
    **{kind: frozenset[str]() for kind in KINDS},
    IMAGE.kind: frozenset(_IMAGE_KEYS),
    VIDEO.kind: frozenset((*PIXEL_KEYS, *NUMBER_OF_FRAMES_KEYS, *RANGE_KEYS)),
    FRAMES_KEY: frozenset((*PIXEL_KEYS, *RATE_KEYS, "fps", FRAMES_KEY)),
}
#: the largest number that a float can hold
_MAX_NUMBER = sys.float_info.max
_NOUNS = {FRAMES_KEY: "a list of frames", **{kind: medium.noun for kind, medium in KINDS.items()}}


def read_medium_settings(
    own_settings: Mapping[str, Any] | None, settings_of_all_media: Mapping[str, Any], kind: str
) -> MediumSettings | None:
    """Read the settings of a medium; None: the sample sets nothing for it. Raises Skip: `bad_message`.

    Args:
        own_settings: the sample's settings of this medium; a key whose value is None sets nothing.
        settings_of_all_media: the sample's settings of all its media.
        kind: the kind of the medium.
    """
    values = {key: item for key, item in (own_settings or {}).items() if item is not None}
    if not values and not settings_of_all_media:
        return None
    noun = FRAMES_KEY if FRAMES_KEY in values else kind
    if unknown := sorted(values.keys() - _KEYS_OF_KIND[noun]):
        keys = ", ".join(key for key in SETTING_KEYS if key in _KEYS_OF_KIND[noun])
        raise Skip(Reason.BAD_MESSAGE, f"{unknown[0]} of {_NOUNS[noun]}: there are {keys}")
    values = {
        key: settings_of_all_media[key]
        for key in SHARED_KEYS
        if key in _KEYS_OF_KIND[noun] and settings_of_all_media.get(key) is not None
    } | values
    if not values:
        return None
    settings = MediumSettings(**{field.name: _number(values, field.name) for field in fields(MediumSettings)})  # type: ignore[arg-type]
    if (settings.resized_height is None) != (settings.resized_width is None):
        raise Skip(Reason.BAD_MESSAGE, f"resized_height and resized_width go together: {values}")
    value_of_synonyms(values, ("fps", "sample_fps"))
    if settings.fps is not None and settings.nframes is not None:
        raise Skip(
            Reason.BAD_MESSAGE, f"fps={settings.fps:g} and nframes={settings.nframes:g}: one of them says how many"
        )
    return settings


def _number(values: Mapping[str, Any], key: str) -> float | None:
    value = values.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= _MAX_NUMBER:
        raise Skip(Reason.BAD_MESSAGE, f"{key} is {str(value)[:40]!r}, no number")
    if value <= 0 and key not in RANGE_KEYS:
        raise Skip(Reason.BAD_MESSAGE, f"{key} is {value}, no number above 0")
    if key == FRAMES_KEY and type(value) is not int:
        raise Skip(Reason.BAD_MESSAGE, f"{key} is {value}, no number of images")
    return value
