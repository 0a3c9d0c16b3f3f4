"""Reads from plain headers of videos what FFmpeg would open or decode them for."""

import struct
from contextlib import suppress
from typing import BinaryIO

from energon_pack.samples.media.video_mp4 import is_upright_mp4, pictures_in_mp4
from energon_pack.samples.media.video_webm import is_upright_webm, pictures_in_webm


def plain_pictures(file: BinaryIO, extension: str) -> bool | None:
    """Tell whether a container of videos has pictures that are no cover; None: its tables do not say it plainly."""
    with suppress(struct.error, IndexError):
        return {"mp4": pictures_in_mp4, "mkv": pictures_in_webm}[extension](file)
    return None


def plainly_upright(file: BinaryIO, extension: str) -> bool:
    """Tell whether a container surely asks players not to turn its pictures; only mp4 and Matroska can ask it."""
    with suppress(struct.error, IndexError):
        return {"mp4": is_upright_mp4, "mkv": is_upright_webm}.get(extension, lambda _: True)(file)
    return False
