"""A sample as tensors, and a pack of such samples."""

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
    """A sample as tensors: its tokens and media inputs, ready to be laid out in a batch."""

    sample_id: str
    tokens: Member
    media: dict[str, Tensor] = field(default_factory=dict)
    #: images and videos that it adds to its pack, without those that it shares with the member before it
    num_images: int = 0
    num_videos: int = 0
    #: how its media are joined with other members' media; inputs that are not named are concatenated in dimension 0
    joins: "Mapping[str, Join]" = field(default_factory=dict)


class BadPack(ValueError):
    """A pack that can't be trained on; the message names the pack or the member, and a remedy."""


@dataclass
class Pack:
    """A pack whose members (samples) are encoded, and their joined media."""

    key: str
    members: list[Encoded]
    #: media inputs of all members, in their order
    media: dict[str, Tensor]
    #: sample ids of members that were left out
    dropped: list[str]


def refuse_trees(packs: Sequence[Pack], where: str) -> None:
    """Raise BadPack if members share tokens, which `where` (a layout, mask or trainer) does not support."""
    why = f"it shares tokens with the sample before it, for which {where} has no place: pack with packing.share=none"
    _refuse(packs, lambda tokens: bool(tokens.shared_len), why)


def refuse_weights(packs: Sequence[Pack], where: str, way_out: str) -> None:
    """Raise BadPack if a sample or turn has a weight that `where` does not support; the message ends with `way_out`."""
    why = f"it or one of its turns has a weight other than 1, and {where} has no place for it; {way_out}"
    _refuse(packs, lambda tokens: tokens.is_weighted, why)


def _refuse(packs: Sequence[Pack], is_bad: Callable[[Member], bool], why: str) -> None:
    for pack in packs:
        if bad := next((member for member in pack.members if is_bad(member.tokens)), None):
            raise BadPack(f"{bad.sample_id} in {pack.key}: {why}")


def text_sample(ids: Tensor, rows: Iterable[str] = ()) -> Encoded:
    """Return a text sample of token ids [L], trained on all but the first; inputs named in `rows` are zeros [L]."""
    zeros, labels = torch.zeros_like(ids), torch.cat([torch.full((1,), IGNORE), ids[1:]])
    return Encoded("text", Member(ids, labels, zeros, rows=dict.fromkeys(rows, zeros)))


#: argument of `forward` and of `get_rope_index` that says that videos have sound
USE_AUDIO_IN_VIDEO = "use_audio_in_video"
#: tokens of a video and of a sound in `mm_token_type_ids`
_VIDEO_TYPE, _SOUND_TYPE = 2, 3


def has_audio_in_video(types: Tensor) -> bool:
    """Say whether a sample's videos have sound: in `types` [L] a sound's token is next to a video's token."""
    pairs = torch.stack([types[:-1], types[1:]]).sort(dim=0).values
    return bool(((pairs[0] == _VIDEO_TYPE) & (pairs[1] == _SOUND_TYPE)).any())
