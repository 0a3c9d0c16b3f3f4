"""A pack as a person wants to see it: its members, their turns and media, and what of their tokens is trained on."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Span:
    """Tokens in a row that are alike."""

    text: str  # what they spell; of media a word for it, as `image 448×336`
    kind: str  # text, special, image or video
    num_tokens: int
    weight: float  # how much each of its tokens counts in the loss, by its turn; 0: it is not trained on

    @property
    def is_trained(self) -> bool:
        return self.weight > 0


def times(weight: float) -> str:
    """A weight as it is shown: `×0.5`."""
    return f"×{weight:.6g}"


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
    width: int  # upright; 0: it can't be read, see `problem`
    height: int
    num_frames: int = 0  # of a video
    num_bytes: int = 0
    num_tokens: int | None = None  # all that stand for it; None: without the model's tokenizer
    seen: str | None = None  # what `media.*` makes of it; None: nothing, or not known
    data: bytes | None = None  # a small picture of it, WebP; None: not asked for, or none could be made
    problem: str | None = None  # why it can't be read or shown

    def __str__(self) -> str:
        frames = f", {self.num_frames:,} frames" if self.num_frames else ""
        return f"{self.kind} {self.width}×{self.height}{frames}" if self.width else self.kind


@dataclass(frozen=True)
class MemberView:
    """A sample in a pack, or of a source."""

    sample_id: str
    media_type: str
    token_len: int | None  # None: it was not measured, see `refused`
    num_supervised: int | None
    num_visual_tokens: int | None
    turns: list[Turn] = field(default_factory=list)
    media: list[Medium] = field(default_factory=list)
    spans: list[Span] | None = None  # None: without the model's tokenizer
    refused: str | None = None  # why it would be in no pack: reason and detail
    notes: list[str] = field(default_factory=list)  # what of it could not be told, and why
    weight: float = 1.0  # of the whole sample


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

    @property
    def token_len(self) -> int | None:
        """Of all members; None where one was not measured."""
        lens = [member.token_len for member in self.members]
        return None if None in lens else sum(filter(None, lens))
