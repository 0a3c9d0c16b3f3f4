"""A member as the model would see it alone, and a pack of members."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from energon_pack.training.layout import IGNORE, Member

if TYPE_CHECKING:
    from energon_pack.training.joining import Join


@dataclass(frozen=True)
class Encoded:
    """A member, ready to be laid out."""

    sample_id: str
    tokens: Member
    media: dict[str, Tensor] = field(default_factory=dict)
    #: media that it adds to its pack: without media that it shares with the member before it
    num_images: int = 0
    num_videos: int = 0
    #: how its media are joined with other members' media; inputs that are not named are concatenated in dimension 0
    joins: "Mapping[str, Join]" = field(default_factory=dict)


class BadPack(ValueError):
    """A pack can't be trained on: the message names the pack or the member, and what to do."""


@dataclass
class Pack:
    """A pack whose members are encoded."""

    key: str
    members: list[Encoded]
    #: media inputs of all members, in their order
    media: dict[str, Tensor]
    #: ids of members that were left out
    dropped: list[str]


def refuse_trees(packs: Sequence[Pack], where: str) -> None:
    """Raise BadPack if samples share tokens."""
    why = f"it shares tokens with the sample before it, for which {where} has no place: pack with packing.share=none"
    _refuse(packs, lambda tokens: bool(tokens.shared_len), why)


def refuse_weights(packs: Sequence[Pack], where: str, way_out: str) -> None:
    """Raise BadPack if a sample, or a turn of it, has a weight other than 1."""
    why = f"it or one of its turns has a weight other than 1, and {where} has no place for it; {way_out}"
    _refuse(packs, lambda tokens: tokens.is_weighted, why)


def _refuse(packs: Sequence[Pack], is_bad: Callable[[Member], bool], why: str) -> None:
    for pack in packs:
        if bad := next((member for member in pack.members if is_bad(member.tokens)), None):
            raise BadPack(f"{bad.sample_id} in {pack.key}: {why}")


def text_of(ids: Tensor, rows: Iterable[str] = ()) -> Encoded:
    """Return a text of some ids [L], trained from the second one on; its further `rows` are 0."""
    zeros, labels = torch.zeros_like(ids), torch.cat([torch.full((1,), IGNORE), ids[1:]])
    return Encoded("text", Member(ids, labels, zeros, rows=dict.fromkeys(rows, zeros)))


#: argument of `forward` and of `get_rope_index` that says that videos are heard
HEARD = "use_audio_in_video"
#: tokens of a video and of a sound in `mm_token_type_ids`
_VIDEO, _SOUND = 2, 3


def are_heard(types: Tensor) -> bool:
    """Whether the videos of a member are heard: tokens of sounds then stand right beside tokens of videos."""
    pairs = torch.stack([types[:-1], types[1:]]).sort(dim=0).values
    return bool(((pairs[0] == _VIDEO) & (pairs[1] == _SOUND)).any())
