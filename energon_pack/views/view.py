"""A pack as a person wants to see it: its members, their turns and media, and what of their tokens is trained on."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Span:
    """Tokens in a row that are alike."""

    text: str  # what they spell; of media a word for it, as `image 448×336`
    kind: str  # text, special, image or video
    num_tokens: int
    is_trained: bool


@dataclass(frozen=True)
class Turn:
    """A message."""

    role: str
    text: str  # with its placeholders


@dataclass(frozen=True)
class Medium:
    """An image or a video of a member."""

    kind: str
    name: str  # of its part or file
    width: int
    height: int
    num_frames: int = 0  # that the model sees; of an image 0
    data: bytes | None = None  # a small picture of it, WebP; None: not asked for, or it can't be decoded


@dataclass(frozen=True)
class MemberView:
    """A sample in a pack, or of a source."""

    sample_id: str
    media_type: str
    token_len: int | None  # None: it was not measured, see `refused`
    num_supervised: int | None
    num_visual_tokens: int | None
    turns: list[Turn]
    media: list[Medium] = field(default_factory=list)
    spans: list[Span] | None = None  # None: without the model's tokenizer
    refused: str | None = None  # why it would be in no pack: reason and detail


@dataclass(frozen=True)
class PackView:
    """A pack of a dataset, or of a plan."""

    key: str
    number: int  # in the order of the plan
    num_packs: int
    shard: str | None  # its file; None: it is not written
    media_type: str
    max_token_len: int | None
    members: list[MemberView]
    notes: list[str] = field(default_factory=list)  # what could not be told, and why
