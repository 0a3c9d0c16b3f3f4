"""One member of a pack, or an unpacked sample, and its tokens, between its reader and its encoder."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from energon_pack.samples.media.kinds import ADDED_KINDS, AUDIO, IMAGE, KINDS, VIDEO


class LengthChangedError(Exception):
    """Raised if a member has another length in tokens than when it was packed."""


class PixelStep(NamedTuple):
    """An operation on the pixels of an image, or of a video's frame."""

    operation: str  # of `OPERATIONS`
    width: int  # pixels afterwards
    height: int


#: resize with Pillow; cut out the middle; resize with torch, as qwen_vl_utils does; a preprocessor of another package
RESIZE, CROP, RESIZE_BY_TORCH, BY_PACKAGE = OPERATIONS = ("resize", "crop", "resize_frame", "own")


@dataclass(frozen=True)
class MediumInput:
    """How a medium's bytes become a model's inputs: size, steps that resize it, chosen frames, number of tokens."""

    kind: str  # of `kinds.KINDS`
    num_images: int = 0  # images that a video is made of; 0: it is a file of its own
    num_features: int = 0  # tokens that hold its features; of a video that is heard, those of its frames
    width: int = 0  # pixels of the picture before the steps
    height: int = 0
    steps: Sequence[PixelStep] = ()
    frames: Sequence[int] = ()  # indices of the frames that the model sees
    num_in_source: float = 0.0  # frames of the video from which these were chosen
    fps: float = 0.0
    num_samples: int = 0  # of a sound, or of the sound of a video that is heard, at the processor's rate

    @property
    def is_seen(self) -> bool:
        """Whether the medium is an image or a silent video; members of a pack may share such media."""
        return self.kind in (IMAGE.kind, VIDEO.kind) and not self.num_samples

    @property
    def part_kinds(self) -> list[str]:
        """The kind of each file of the pack that the medium consists of: several images if they are one video."""
        return [IMAGE.kind] * self.num_images or [self.kind]


@dataclass(frozen=True)
class MemberTokens:
    """The token ids of one member of a pack, with its trained ranges and its media."""

    ids: npt.NDArray[np.int64]  # [L]
    supervised: Sequence[tuple[int, int]]  # trained ranges of tokens, ascending; the first token is in none
    weights: Sequence[float] = ()  # of each range; empty: all are 1
    media: Sequence[MediumInput] = ()  # in the order of their placeholders
    factor: float = 1.0  # weight of the whole sample in the loss
    shared_len: int = 0  # how many of its first tokens the member before it has, too

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def num_supervised(self) -> int:
        return sum(end - start for start, end in self.supervised)

    @property
    def num_weighted(self) -> int:
        """The number of trained tokens whose weight in the loss is not 1."""
        each = zip(self.supervised, self.weights or repeat(1.0), strict=False)
        return sum(end - start for (start, end), weight in each if weight * self.factor != 1)

    @property
    def token_weights(self) -> list[float]:
        """The weight of each token in its sample's loss, without `factor`; 0: the token is not trained."""
        weights = [0.0] * len(self)
        for (start, end), weight in zip(self.supervised, self.weights or [1.0] * len(self.supervised), strict=True):
            weights[start:end] = [weight] * (end - start)
        return weights


@dataclass(frozen=True)
class JoinedTokens:
    """The tokens of several members, one member behind the other, without their media."""

    ids: npt.NDArray[np.int64]  # [T]
    lens: npt.NDArray[np.int64]  # of each member
    spans: npt.NDArray[np.int64]  # [spans, 2]: trained ranges in all tokens, ascending
    weights: npt.NDArray[np.floating[Any]] | None = None  # of each range; None: all are 1
    factors: npt.NDArray[np.float64] | None = None  # of each member; None: all are 1
    shared_lens: npt.NDArray[np.int64] | None = None  # of each member; None: all are 0

    @property
    def trained_indices(self) -> npt.NDArray[np.int64]:
        """The places of all trained tokens."""
        lens = self.spans[:, 1] - self.spans[:, 0]
        return np.repeat(self.spans[:, 1] - np.cumsum(lens), lens) + np.arange(lens.sum())

    @property
    def token_weights(self) -> npt.NDArray[np.float32] | None:
        """The weight of each token, 1 if it is not trained; None: all are 1."""
        if self.weights is None:
            return None
        weights = np.ones(len(self.ids), np.float32)
        weights[self.trained_indices] = np.repeat(self.weights, self.spans[:, 1] - self.spans[:, 0])
        return weights

    @classmethod
    def of_members(cls, members: Sequence[MemberTokens]) -> "JoinedTokens":
        """Join the tokens of members."""
        lens = [*map(len, members)]
        starts = [*accumulate(lens, initial=0)][:-1]
        parts = [np.array(member.supervised, np.int64).reshape(-1, 2) for member in members]
        spans = [part + start for part, start in zip(parts, starts, strict=True)]
        weights = [weight for one in members for weight in one.weights or [1.0] * len(one.supervised)]
        return cls(
            np.concatenate([np.zeros(0, np.int64), *(member.ids for member in members)]),
            np.array(lens, np.int64),
            np.concatenate([np.zeros((0, 2), np.int64), *spans]),
            np.array(weights, np.float64) if any(member.weights for member in members) else None,
            np.array([one.factor for one in members]) if any(one.factor != 1 for one in members) else None,
            np.array([one.shared_len for one in members]) if any(one.shared_len for one in members) else None,
        )


@dataclass(frozen=True)
class SampleOptions:
    """Settings that one sample has for itself, for rendering and training."""

    #: the factor of its loss
    weight: float = 1.0
    #: variables of the chat template; they override the run's variables
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    #: for each medium, in the order of their placeholders, the settings in its content part; empty: none
    media: tuple[Mapping[str, Any] | None, ...] = ()
    #: settings of all media: ms-swift's `chat_template_kwargs: {"max_pixels": …}`
    all_media: Mapping[str, Any] = field(default_factory=dict)
    #: settings of `labels` that override the run's
    labels: Mapping[str, Any] = field(default_factory=dict)
    #: whether the sound of its videos is heard, too
    use_audio_in_video: bool = False
    #: of its tokens, the first that is part of it, and the first that no longer is; None: all are
    token_range: tuple[int, int] | None = None


NO_OPTIONS = SampleOptions()


class Shared(NamedTuple):
    """The beginning that a member of a pack shares with the member before it: numbers of tokens, images and videos."""

    #: number of its first tokens that are also the first of the member before it; 0: it begins a new tree
    num_tokens: int = 0
    #: number of images and videos in these tokens
    num_images: int = 0
    num_videos: int = 0


NOTHING_SHARED = Shared()


@dataclass(frozen=True)
class MemberInput:
    """One member of a pack, or an unpacked sample, as training gets it before encoding.

    A member that is read from a pack has an id, a length, media and tokens; its messages and options are empty.
    """

    sample_id: str
    messages: list[dict[str, Any]]
    images: Sequence[Any] = ()
    videos: Sequence[bytes] = ()
    tools: list[Any] | None = None
    video_frames: Any = None
    #: its measured length in tokens; None: not measured
    token_len: int | None = None
    options: SampleOptions = NO_OPTIONS
    audios: Sequence[bytes] = ()
    #: its beginning that the member before it has, too; `images` and `videos` also hold the shared media
    shared: Shared = NOTHING_SHARED
    #: media of kinds that packages add, by kind
    others: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    #: what the model is fed of it; None: nobody has tokenized it yet
    tokens: MemberTokens | None = None
    #: number of pictures that are missing, and whose places were removed
    num_removed: int = 0

    @property
    def media(self) -> dict[str, Sequence[Any]]:
        """The member's media by kind: `image`, `video`, `audio` and added kinds."""
        return {IMAGE.kind: self.images, VIDEO.kind: self.videos, AUDIO.kind: self.audios, **self.others}

    def refuse_missing(self) -> None:
        """Raise OSError if the file of a medium is missing; a missing image raises it when it is decoded."""
        files = {kind: data for kind, data in self.media.items() if kind != IMAGE.kind}
        if missing := next((f"{kind} {data.index(b'')}" for kind, data in files.items() if b"" in data), None):
            raise OSError(f"its {missing} is missing from the pack")


def media_in_order(member: MemberInput, media: Sequence[MediumInput]) -> list[Any]:
    """Return a member's media in the order of its tokens: images, and the bytes of other files."""
    member.refuse_missing()
    kinds = [kind for medium in media for kind in medium.part_kinds]
    counts = {kind: len(parts) for kind, parts in member.media.items() if parts}
    if counts != Counter(kinds):
        raise ValueError(f"its tokens are of {dict(Counter(kinds))}, and it has {counts}")
    waiting = {kind: iter(parts) for kind, parts in member.media.items()}
    return [next(waiting[kind]) for kind in kinds]


def media_keyword_arguments(media_by_kind: Mapping[str, Any], has_plural_names: bool = True) -> dict[str, Any]:
    """Turn media by kind into keyword arguments for `MemberInput`, or for a sample class of Energon.

    Sounds and media of added kinds are left out where there are none: classes of other stacks have no such fields.

    Args:
        media_by_kind: the media of each kind, such as `image`; for a pack, a list for each member.
        has_plural_names: whether the arguments are named `images` …, or `image` … as in sample classes.
    """
    name = {kind: medium.plural if has_plural_names else kind for kind, medium in KINDS.items()}
    fields = {name[kind]: media_by_kind[kind] for kind in (IMAGE.kind, VIDEO.kind)}
    fields |= {name[kind]: media_by_kind[kind] for kind in (AUDIO.kind,) if _has_media(media_by_kind[kind])}
    added = {kind: media_by_kind[kind] for kind, _ in ADDED_KINDS if _has_media(media_by_kind[kind])}
    return {**fields, **({"others": added} if added else {})}


def _has_media(media: Any) -> bool:
    """Tell whether there are media of a kind: in a list, or in a list for each member."""
    return any(not isinstance(of_member, list) or of_member for of_member in media or ())
