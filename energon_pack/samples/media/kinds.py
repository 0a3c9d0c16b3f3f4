"""All kinds of media, and their names in records, packs, tokens and calls. All other rooms use these tables.

An installed package adds a kind with an entry point of `energon_pack.kinds` that names a subclass of `Medium`.
"""

from collections.abc import Iterator
from importlib.metadata import entry_points

from energon_pack.errors import PackError, one_line
from energon_pack.samples.media.images import Image
from energon_pack.samples.media.medium import Medium
from energon_pack.samples.media.sounds import Sound
from energon_pack.samples.media.videos import Video

IMAGE, VIDEO, AUDIO = Image(), Video(), Sound()


def _added() -> Iterator[Medium]:
    """Yield the kinds that installed packages add, in the order of their names; raises PackError."""
    for point in sorted(entry_points(group="energon_pack.kinds"), key=lambda point: point.name):
        try:
            yield point.load()()
        except Exception as error:  # importing foreign code may fail in any way
            raise PackError(f"energon_pack.kinds: {point.name} ({point.value}): {one_line(error)}") from None


#: all kinds by name, in the order of every list of kinds
KINDS: dict[str, Medium] = {medium.kind: medium for medium in (IMAGE, VIDEO, AUDIO, *_added())}
#: what a sample may be by its media, `mix` with several kinds; reports and plans know them by their places here
MEDIA_TYPES = ("text", IMAGE.kind, VIDEO.kind, "mix", *[*KINDS][2:])
#: type of a content part → the kind of the medium that it stands for
PART_TYPES = {name: medium.kind for medium in KINDS.values() for name in medium.part_types}
BY_LETTER = {medium.letter: medium.kind for medium in KINDS.values()}
#: the keys of a record that name its media
MEDIA_KEYS = tuple(key for medium in KINDS.values() for key in medium.keys)
