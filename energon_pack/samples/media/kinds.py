"""The kinds of media, and their names in records, packs, tokens and calls. All other rooms use this table.

Files beside this one read a kind (`image`, `video`, `audio`); `formats` lists its formats.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Medium:
    """One kind of media."""

    #: its name everywhere: `Media.kind`, `<image>`, the type of a content part
    kind: str
    #: its name with an article, in messages
    noun: str
    #: its number in `mm_token_type_ids`; text is 0
    token_type: int

    @property
    def plural(self) -> str:
        return f"{self.kind}s"

    @property
    def nouns(self) -> str:
        """The plural, in messages."""
        return f"{self.noun.split()[1]}s"

    @property
    def letter(self) -> str:
        """The letter that begins the numbers of its parts in packs: `s003.i00.jpg`."""
        return self.kind[0]

    @property
    def placeholder(self) -> str:
        """The text that stands for one medium."""
        return f"<{self.kind}>"

    @property
    def keys(self) -> tuple[str, str]:
        """The fields of a record that list its media of this kind."""
        return self.plural, self.kind

    @property
    def part_types(self) -> tuple[str, ...]:
        """The types of content parts that stand for one medium; OpenAI calls a sound `input_audio`."""
        return self.kind, f"{self.kind}_url", *(("input_audio",) if self.kind == "audio" else ())

    @property
    def column(self) -> str:
        """The name of their count: a column of the lengths, and a field of a member."""
        return f"num_{self.plural}"


IMAGE = Medium("image", "an image", 1)
VIDEO = Medium("video", "a video", 2)
AUDIO = Medium("audio", "a sound", 3)
#: all kinds by name, in the order of every list of kinds
KINDS = {medium.kind: medium for medium in (IMAGE, VIDEO, AUDIO)}
#: what a sample may be by its media, `mix` with several kinds; in the order of three bits: has images, videos, sounds
MEDIA_TYPES = ("text", "image", "video", "mix", "audio")
#: type of a content part → the kind of the medium that it stands for
PART_TYPES = {name: medium.kind for medium in KINDS.values() for name in medium.part_types}
BY_LETTER = {medium.letter: medium.kind for medium in KINDS.values()}
#: the keys of a record that name its media
MEDIA_KEYS = tuple(key for medium in KINDS.values() for key in medium.keys)
