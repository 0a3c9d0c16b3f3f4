"""Tells what a container of streams holds: a video, or only a sound; and which sound a video has."""

from typing import BinaryIO

from energon_pack.samples.media.formats import FORMATS, SOUNDS_LIKE, format_of
from energon_pack.samples.media.medium import MediaFormat
from energon_pack.samples.media.sound_probe import checked_length, decoded_length
from energon_pack.samples.media.streams import is_cover, opened, probing
from energon_pack.samples.media.video_headers import plain_pictures


def stream_format(head: bytes, file: BinaryIO) -> MediaFormat | None:
    """Return the format of a file; a container of videos may hold only a sound.

    Args:
        head: the first 16 bytes of the file.
    """
    found = format_of(head)
    if found is None or found.extension not in SOUNDS_LIKE or _has_video(file, found.extension):
        return found
    return next(format for format in FORMATS if format.extension == SOUNDS_LIKE[found.extension])


def _has_video(file: BinaryIO, extension: str) -> bool:
    """Tell whether a container has a stream of pictures; a cover does not count."""
    has_pictures = plain_pictures(file, extension)
    if has_pictures is not None:
        return has_pictures
    try:
        with opened(file) as container:
            return not container.streams.audio or not all(map(is_cover, container.streams.video))
    except Exception:  # damaged bytes make FFmpeg raise anything; what reads the video says what is wrong
        return True


def probe_track(file: BinaryIO) -> tuple[int, int] | None:
    """Return what `probe_audio` returns, for the first sound of a video; None: the video has no sound."""
    with probing("video"), opened(file) as container:
        return checked_length(*decoded_length(container)) if container.streams.audio else None
