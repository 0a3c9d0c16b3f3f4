"""The formats of all media: extensions, and first bytes of files. Each kind of media lists its own."""

from energon_pack.samples.media.kinds import IMAGE, KINDS, VIDEO
from energon_pack.samples.media.medium import MediaFormat

FORMATS: tuple[MediaFormat, ...] = tuple(format for medium in KINDS.values() for format in medium.formats)
#: video format → the format of sounds that begin with the same bytes: only the streams tell the two apart
SOUNDS_LIKE = {"mp4": "m4a", "mkv": "mka"}
#: extensions of images, by their content
IMAGE_EXTENSIONS = frozenset(format.extension for format in IMAGE.formats)
_KINDS = {name: format.kind for format in FORMATS for name in (format.extension, *format.also)}
#: extensions that mark a file as a medium
MEDIA_NAMES = tuple(_KINDS)
#: extensions that mark a file as a video
VIDEO_NAMES = tuple(name for name, kind in _KINDS.items() if kind == VIDEO.kind)


def format_of(head: bytes) -> MediaFormat | None:
    """Return the format of a file that begins with these 16 bytes; None: unknown."""
    return next((format for format in FORMATS if format.magic.match(head)), None)


def kind_by_name(part: str) -> str | None:
    """Return the kind of medium by the extension of a name; None: it is no medium."""
    return _KINDS.get(part.rpartition(".")[2].lower())
