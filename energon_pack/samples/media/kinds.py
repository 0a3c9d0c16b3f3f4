"""All kinds of media, and their names in records, packs, tokens and calls. All other rooms use these tables.

An installed package adds a kind with an entry point of `energon_pack.kinds` that names a subclass of `Medium`.
"""

import re
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from energon_pack.errors import PackError, one_line
from energon_pack.samples.media.image_kind import Image
from energon_pack.samples.media.medium import Media, MediaFormat, Medium
from energon_pack.samples.media.sound_kind import Sound
from energon_pack.samples.media.video_kind import Video

IMAGE, VIDEO, AUDIO = Image(), Video(), Sound()
BUILTIN_KINDS: tuple[Medium, ...] = (IMAGE, VIDEO, AUDIO)
_KIND_NAME_PATTERN = re.compile("[a-z][a-z0-9]*")
_RESERVED_TYPES = ("text", "mix")  # what a sample may be beside a kind


def _with_added(points: Iterable[EntryPoint]) -> dict[str, Medium]:
    """Return our kinds, and those that installed packages add, in the order of their names."""
    kinds = {medium.kind: medium for medium in BUILTIN_KINDS}
    for point in sorted(points, key=lambda point: point.name):
        try:
            medium = point.load()()
            why_not = _defect_of_kind(medium, kinds.values())
        except Exception as error:  # foreign code may fail in any way
            why_not = one_line(error)
        if why_not:
            raise PackError(f"a kind of media that a package adds ({point.name} = {point.value}): {why_not}")
        kinds[medium.kind] = medium
    return kinds


def _defect_of_kind(medium: Any, kinds: Iterable[Medium]) -> str:
    """Say why a kind can't join others; empty: it can."""
    if not isinstance(medium, Medium):
        return f"{type(medium).__name__} is no energon_pack.Medium"
    if not _KIND_NAME_PATTERN.fullmatch(medium.kind) or medium.kind in _RESERVED_TYPES:
        return f"kind = {medium.kind!r}: lower-case letters and digits, not {' or '.join(_RESERVED_TYPES)}"
    if " " not in medium.noun or not medium.formats or not medium.fields or not medium.parts:
        return "noun is a noun with its article, and formats, fields and parts are not empty"
    if medium.token_type <= AUDIO.token_type:
        return f"token_type = {medium.token_type}: a number above {AUDIO.token_type}"
    for attribute in ("kind", "letter", "token_type", "argument"):
        if other := next((each for each in kinds if getattr(each, attribute) == getattr(medium, attribute)), None):
            return f"{attribute} = {getattr(medium, attribute)!r} is {other.noun}'s"
    taken = {name for each in kinds for form in each.formats for name in (form.extension, *form.also)}
    if used := next((form.extension for form in medium.formats if {form.extension, *form.also} & taken), None):
        return f"the extension {used} is another kind's"
    return "" if medium.example.kind == medium.kind else f"example is {medium.example!r}"


#: all kinds by name, in the order of every list of kinds
KINDS = _with_added(entry_points(group="energon_pack.kinds"))
#: names and versions of the kinds that packages add; caches and fingerprints hold them
ADDED_KINDS = tuple((kind, medium.version) for kind, medium in KINDS.items() if medium not in BUILTIN_KINDS)
#: what a sample may be by its media, `mix` with several kinds; reports and plans know them by their places here
MEDIA_TYPES = ("text", IMAGE.kind, VIDEO.kind, "mix", *[*KINDS][2:])
#: type of a content part → the kind of the medium that it stands for
PART_TYPES = {name: medium.kind for medium in KINDS.values() for name in medium.part_types}
KIND_BY_LETTER = {medium.letter: medium.kind for medium in KINDS.values()}
#: key of a record that names its media → their kind
KIND_OF_MEDIA_KEY = {key: medium.kind for medium in KINDS.values() for key in medium.keys}
MEDIA_KEYS = tuple(KIND_OF_MEDIA_KEY)


def describe(medium: Media) -> str:
    """Describe a medium for messages: `an image of 640×480`."""
    return KINDS[medium.kind].said(medium)


FORMATS: tuple[MediaFormat, ...] = tuple(format for medium in KINDS.values() for format in medium.formats)
#: extensions of images, by their content
IMAGE_EXTENSIONS = frozenset(format.extension for format in IMAGE.formats)
_KIND_OF_EXTENSION = {name: format.kind for format in FORMATS for name in (format.extension, *format.also)}
#: extensions that mark a file as a medium
MEDIA_EXTENSIONS = tuple(_KIND_OF_EXTENSION)
#: extensions that mark a file as a video
VIDEO_EXTENSIONS = tuple(name for name, kind in _KIND_OF_EXTENSION.items() if kind == VIDEO.kind)


def format_of(head: bytes) -> MediaFormat | None:
    """Return the format of a file that begins with these 16 bytes; None: unknown."""
    return next((format for format in FORMATS if format.magic.match(head)), None)


def kind_by_extension(part: str) -> str | None:
    """Return the kind of medium by the extension of a name; None: it is no medium."""
    return _KIND_OF_EXTENSION.get(part.rpartition(".")[2].lower())
