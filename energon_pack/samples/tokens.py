"""What a model is fed of one member of a pack: token ids, which of them are trained, and how its media are prepared."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from energon_pack.samples.media.kinds import IMAGE, VIDEO


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
