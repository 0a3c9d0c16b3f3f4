"""A sample as tensors, and a pack of such samples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

if TYPE_CHECKING:
    from energon_pack.training.joining import JoinRule

#: label of a token that is not trained on
IGNORE = -100


@dataclass(frozen=True)
class Member:
    """One sample of L tokens as tensors, as the model would see it alone."""

    ids: Tensor  # [L] int64
    labels: Tensor  # [L] int64, not shifted, -100 where not trained on and on the first token
    types: Tensor  # [L] int64: 0 text, 1 image, 2 video
    rope: Tensor | None = None  # [3, L] int64: M-RoPE rows, in models that have them
    rows: Mapping[str, Tensor] = field(default_factory=dict)  # [L] int64 each: a model's further inputs by token
    weights: Tensor | None = None  # [L] float32: how much each token counts, by its turn; None: all 1
    factor: float = 1.0  # weight of the whole sample
    shared_len: int = 0  # how many first tokens it shares with the member before it in the pack

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def is_weighted(self) -> bool:
        """Whether the sample or one of its turns has a weight."""
        return self.weights is not None or self.factor != 1


@dataclass(frozen=True, eq=False)
class Members(Sequence[Member]):
    """The members of a pack as columns of T tokens; one of them, by its place, is a view."""

    ids: Tensor  # [T], as are the columns of `Member`
    labels: Tensor
    types: Tensor
    lens: Tensor  # [members] int64
    counts: Tensor  # [T] int64: each token's place in its member
    rope: Tensor | None = None  # [3, T]
    rows: Mapping[str, Tensor] = field(default_factory=dict)
    weights: Tensor | None = None  # None: all 1
    factors: Tensor | None = None  # [members] float64; None: all 1
    shared_lens: Tensor | None = None  # [members] int64; None: nothing is shared

    @classmethod
    def of(cls, members: Sequence[Member]) -> "Members":
        """JoinRule members, unless they are columns already."""
        if isinstance(members, Members):
            return members
        ids, labels, types = (torch.cat([getattr(one, name) for one in members]) for name in ("ids", "labels", "types"))
        has_rope, has_weights = (any(getattr(one, name) is not None for one in members) for name in ("rope", "weights"))
        weights = [torch.ones(len(one)) if one.weights is None else one.weights for one in members]
        lens = np.array([len(one) for one in members], np.int64)
        return cls(
            ids,
            labels,
            types,
            torch.from_numpy(lens),
            torch.from_numpy(restarting_counts(lens)),
            torch.cat([m_rope_rows(one) for one in members], dim=1) if has_rope else None,
            {name: torch.cat([one.rows[name] for one in members]) for name in members[0].rows},
            torch.cat(weights) if has_weights else None,
            torch.tensor([one.factor for one in members], dtype=torch.float64)
            if any(one.factor != 1 for one in members)
            else None,
            torch.tensor([one.shared_len for one in members]) if any(one.shared_len for one in members) else None,
        )

    @cached_property
    def _ends(self) -> list[int]:
        ends: list[int] = self.lens.cumsum(0).tolist()
        return ends

    def __len__(self) -> int:
        return len(self.lens)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [*self][index]
        end = self._ends[index]
        own = slice(end - int(self.lens[index]), end)
        weights = None if self.weights is None or bool((self.weights[own] == 1).all()) else self.weights[own]
        return Member(
            self.ids[own],
            self.labels[own],
            self.types[own],
            None if self.rope is None else self.rope[:, own],
            {name: row[own] for name, row in self.rows.items()},
            weights,
            1.0 if self.factors is None else float(self.factors[index]),
            0 if self.shared_lens is None else int(self.shared_lens[index]),
        )

    @property
    def is_weighted(self) -> bool:
        """Whether any member is."""
        return self.weights is not None or self.factors is not None

    @property
    def num_tokens_in_row(self) -> int:
        """The number of tokens, shared ones once."""
        return len(self.ids) - (0 if self.shared_lens is None else int(self.shared_lens.sum()))

    @property
    def is_tree(self) -> bool:
        """Whether any member shares its first tokens with the member before it."""
        return self.shared_lens is not None and bool(self.shared_lens.any())


def restarting_counts(lens: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return 0, 1, … length - 1 for each length, concatenated: numpy takes a third of torch's time."""
    return np.arange(lens.sum()) - np.repeat(np.cumsum(lens) - lens, lens)


def m_rope_rows(member: Member) -> Tensor:
    """Return the M-RoPE rows [3, L] of a member; in models without any, each row counts its tokens from 0."""
    return torch.arange(len(member)).expand(3, -1) if member.rope is None else member.rope


@dataclass(frozen=True)
class Encoded:
    """A sample as tensors: its tokens and media inputs, ready to be laid out in a batch."""

    sample_id: str
    tokens: Member
    media: dict[str, Tensor] = field(default_factory=dict)
    #: images and videos that it adds to its pack, without those that it shares with the member before it
    num_images: int = 0
    num_videos: int = 0
    #: how its media are joined with other members' media; inputs that are not named are concatenated in dimension 0
    joins: "Mapping[str, JoinRule]" = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class EncodedMembers(Sequence[Encoded]):
    """The members of a pack as columns; one of them, by its place, is a view without media, which the pack holds."""

    sample_ids: list[str]
    tokens: Members
    #: of each member, as in `Encoded`
    num_images: list[int]
    num_videos: list[int]
    #: how much of each media input of the pack is each member's; inputs of which nothing tells it are left out
    media_lens: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, members: Sequence[Encoded]) -> "EncodedMembers":
        """JoinRule members, unless they are columns already."""
        if isinstance(members, EncodedMembers):
            return members
        return cls(
            [one.sample_id for one in members],
            Members.of([one.tokens for one in members]),
            [one.num_images for one in members],
            [one.num_videos for one in members],
        )

    def __len__(self) -> int:
        return len(self.sample_ids)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [*self][index]
        counts = self.num_images[index], self.num_videos[index]
        return Encoded(self.sample_ids[index], self.tokens[index], {}, *counts)


#: by the boundaries of a batch's members, their parts of each media input; None: batches tell different ones
TOLD_MEDIA_LENS: dict[tuple[int, ...], Mapping[str, Sequence[int]] | None] = {}


class BatchWithMediaLens(dict[str, Any]):
    """A mapping that tells `guard` whose media are whose, and so do its copies in any process."""

    #: boundaries of the members, and their parts of each media input
    media_lens: tuple[tuple[int, ...], Mapping[str, Sequence[int]]] | None = None

    def _with_lens_of(self, other: "BatchWithMediaLens") -> Self:
        """Tell what another mapping tells; return this one."""
        self.__setstate__(vars(other))
        return self

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)
        if self.media_lens is not None:
            key, lens = self.media_lens
            TOLD_MEDIA_LENS[key] = lens if TOLD_MEDIA_LENS.pop(key, lens) == lens else None
            for oldest in [*TOLD_MEDIA_LENS][:-1024]:
                TOLD_MEDIA_LENS.pop(oldest, None)


class BadPack(ValueError):
    """A pack that can't be trained on; the message names the pack or the member, and a remedy."""


@dataclass
class TrainingPack:
    """A pack whose members (samples) are encoded, and their joined media."""

    key: str
    members: Sequence[Encoded]
    #: media inputs of all members, in their order
    media: dict[str, Tensor]
    #: sample ids of members that were left out
    dropped: list[str]


#: argument of `forward` and of `get_rope_index` that says that videos have sound
USE_AUDIO_IN_VIDEO = "use_audio_in_video"
#: tokens of a video and of a sound in `mm_token_type_ids`
_VIDEO_TYPE, _SOUND_TYPE = 2, 3


def has_audio_in_video(token_types: Tensor) -> bool:
    """Say whether a sample's videos have sound: in `token_types` [L] a sound's token is next to a video's token."""
    pairs = torch.stack([token_types[:-1], token_types[1:]]).sort(dim=0).values
    return bool(((pairs[0] == _VIDEO_TYPE) & (pairs[1] == _SOUND_TYPE)).any())
