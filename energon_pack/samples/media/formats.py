"""The formats of media: extensions, first bytes and ends of their files. To add a format, add a row.

This module is light: it decodes nothing and imports no decoder.
"""

import os
import re
from collections.abc import Callable
from typing import BinaryIO, NamedTuple


class Format(NamedTuple):
    """A format of images, or a container of videos or sounds."""

    kind: str  # of `KINDS`
    extension: str  # the usual extension, without a dot
    magic: re.Pattern[bytes]  # matches the first 16 bytes of a file
    also: tuple[str, ...] = ()  # other extensions
    in_pillow: tuple[str, ...] = ()  # Pillow's name for it, if that is not the usual extension
    #: checks that a video ends where its first bytes say; None: FFmpeg itself notices a cut file
    is_whole: Callable[[BinaryIO], bool] | None = None


def _has_whole_boxes(file: BinaryIO) -> bool:
    """Tell whether the outermost boxes of an mp4 end with the file: FFmpeg opens a cut mp4 and promises all frames."""
    end = file.seek(0, os.SEEK_END)
    position = 0
    while position + 8 <= end:
        file.seek(position)
        head = file.read(16)
        size = int.from_bytes(head[:4], "big")
        if size == 1:
            size = int.from_bytes(head[8:16], "big")
        elif size == 0:  # the box goes to the end of the file
            return True
        if size < 8:
            return False
        position += size
    return position == end


def _has_whole_riff(file: BinaryIO) -> bool:
    """Tell whether the RIFF chunk of an AVI ends within the file."""
    end = file.seek(0, os.SEEK_END)
    file.seek(0)
    head = file.read(8)
    return head[:4] != b"RIFF" or 8 + int.from_bytes(head[4:], "little") <= end


def _begins(pattern: bytes) -> re.Pattern[bytes]:
    return re.compile(pattern, re.DOTALL)


_MP4 = rb"....ftyp(?!avi|hei|hev|mif|msf|M4[AB])"  # AVIF and HEIF are images in the same container, M4A is a sound
FORMATS = (
    Format("image", "jpg", _begins(rb"\xff\xd8\xff"), also=("jpeg",), in_pillow=("JPEG", "MPO")),
    Format("image", "png", _begins(rb"\x89PNG\r\n\x1a\n")),
    Format("image", "gif", _begins(rb"GIF8[79]a")),
    Format("image", "webp", _begins(rb"RIFF....WEBP")),
    Format("image", "bmp", _begins(rb"BM")),
    Format("image", "tif", _begins(rb"II\*\0|MM\0\*|II\+\0|MM\0\+"), also=("tiff",), in_pillow=("TIFF",)),
    Format("image", "avif", _begins(rb"....ftyp(avi[fs]|mif1|msf1)")),
    Format("video", "mp4", _begins(_MP4), also=("mov", "m4v", "3gp"), is_whole=_has_whole_boxes),
    Format("video", "avi", _begins(rb"........AVI "), is_whole=_has_whole_riff),
    Format("video", "mkv", _begins(rb"\x1a\x45\xdf\xa3"), also=("webm",)),
    Format("video", "ts", _begins(rb"G@[\0\x11][\x10-\x1f]")),  # it must begin with a list of its programs
    Format("video", "flv", _begins(rb"FLV\x01")),
    Format("video", "wmv", _begins(rb"\x30\x26\xb2\x75\x8e\x66\xcf\x11"), also=("asf",)),
    Format("video", "mpg", _begins(rb"\0\0\x01\xba"), also=("mpeg",)),
    Format("audio", "wav", _begins(rb"(RIFF|RF64)....WAVE")),
    Format("audio", "flac", _begins(rb"fLaC")),
    Format("audio", "ogg", _begins(rb"OggS"), also=("oga", "opus")),
    Format("audio", "mp3", _begins(rb"ID3|\xff[\xe2\xe3\xf2\xf3\xfa\xfb]")),
    Format("audio", "aac", _begins(rb"\xff[\xf0\xf1\xf8\xf9]")),
    Format("audio", "aiff", _begins(rb"FORM....AIF[FC]"), also=("aif", "aifc")),
    Format("audio", "m4a", _begins(rb"....ftypM4[AB]"), also=("m4b",), is_whole=_has_whole_boxes),
    Format("audio", "mka", _begins(rb"\x1a\x45\xdf\xa3"), also=("weba",)),
)
#: video format → the format of sounds that begin with the same bytes: only the streams tell the two apart
SOUNDS_LIKE = {"mp4": "m4a", "mkv": "mka"}
#: extensions of images, by their content
IMAGE_EXTENSIONS = frozenset(format.extension for format in FORMATS if format.kind == "image")
_KINDS = {name: format.kind for format in FORMATS for name in (format.extension, *format.also)}
#: extensions that mark a file as a medium
MEDIA_NAMES = tuple(_KINDS)
#: extensions that mark a file as a video
VIDEO_NAMES = tuple(name for name, kind in _KINDS.items() if kind == "video")
_IN_PILLOW = {name: format.extension for format in FORMATS for name in format.in_pillow}


def format_of(head: bytes) -> Format | None:
    """Return the format of a file that begins with these 16 bytes; None: unknown."""
    return next((format for format in FORMATS if format.magic.match(head)), None)


def extension_of(name: str) -> str:
    """Return the usual extension of an image format, by its name in Pillow."""
    return _IN_PILLOW.get(name, name.lower())


def kind_by_name(part: str) -> str | None:
    """Return the kind of medium by the extension of a name; None: it is no medium."""
    return _KINDS.get(part.rpartition(".")[2].lower())
