"""Tell whose pixels are whose in a batch: packs and users tell it; else grids or the runs of media tokens do."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from energon_pack.training.batch_members import MemberPlaces, MemberSizes, is_layout_input
from energon_pack.training.encoded import TOLD_MEDIA_LENS
from energon_pack.training.forward_inputs import ids_or_embeddings
from energon_pack.training.model_wrappers import configs_in
from energon_pack.training.trial_inputs import SOUND_INPUTS

if TYPE_CHECKING:
    from energon_pack.training.joining import JoinRule

#: kinds of tokens, as `mm_token_type_ids` counts them
_IMAGE, _VIDEO, _SOUND = 1, 2, 3
_ID_NAMES = {_IMAGE: "image_token", _VIDEO: "video_token", _SOUND: "audio_token"}
_GRIDS = {_IMAGE: "image_grid_thw", _VIDEO: "video_grid_thw"}


def media_inputs_in(inputs: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the inputs that have neither a value per token nor the layout of members: pixels and their like."""
    shape = ids_or_embeddings(inputs).shape[:2]
    return {
        name: value
        for name, value in inputs.items()
        if isinstance(value, Tensor) and value.dim() and value.shape[:2] != shape and not is_layout_input(name)
    }


def token_types(inputs: Mapping[str, Any], config: Any) -> Tensor | None:
    """Return the kind [B, S] of each token: 0 a word, 1 an image's, 2 a video's, 3 a sound's; None: nothing tells."""
    given, ids = inputs.get("mm_token_type_ids"), inputs.get("input_ids")
    if isinstance(given, Tensor) and given.shape == ids_or_embeddings(inputs).shape[:2]:
        return given
    if ids is None:
        return None
    types = torch.zeros_like(ids)
    for kind, name in _ID_NAMES.items():
        for value in (getattr(part, f"{name}{end}", None) for part in configs_in(config) for end in ("_id", "_index")):
            types[ids == (value if isinstance(value, int) else -1)] = kind
    return types


@dataclass(frozen=True)
class MediaShares:
    """The part of each media input that belongs to each member of a batch."""

    #: by input: the dimension along which media lie, and where each member's part begins there; last, where all end
    ends: Mapping[str, tuple[int, Sequence[int]]]
    #: inputs of which nothing tells whose they are
    open_names: frozenset[str] = frozenset()

    def cut(self, name: str, member: int, media_input: Tensor) -> Tensor:
        """Return a member's part of an input."""
        dim, ends = self.ends[name]
        return media_input.narrow(dim, ends[member], ends[member + 1] - ends[member])

    def inputs_of_member(self, member: int, inputs: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return a member's own media inputs, by name; without those of which it has none."""
        made = {name: self.cut(name, member, inputs[name]) for name in self.ends}
        return {name: part for name, part in made.items() if part.numel()}


def media_shares(
    inputs: Mapping[str, Any],
    members: Sequence[MemberPlaces],
    types: Tensor | None,
    sizes: MemberSizes | None,
    joins: "Mapping[str, JoinRule]",
    left_out: Collection[str] = (),
) -> MediaShares:
    """Split each media input into its members' parts.

    Args:
        types: [B, S]: see `token_types`.
        sizes: members as their user gives them, with their rows of each input; None: as their pack tells.
        joins: rules by which the inputs were joined; those without a rule lie along dimension 0.
        left_out: inputs that a model makes by itself for a member alone.
    """
    media = {name: value for name, value in media_inputs_in(inputs).items() if name not in left_out}
    given = [member for row in sizes or () for member in row if isinstance(member, Mapping)]
    told: Mapping[str, Sequence[int]] = {name: [one.get(name, 0) for one in given] for name in media if given}
    told = told or find_media_lens_of_batch(inputs.get("cu_seq_lens_q"))
    own = [member.select(types) for member in members] if types is not None else []
    ends: dict[str, tuple[int, Sequence[int]]] = {}
    for name, value in media.items():
        rule = joins.get(name)
        dim = rule.dim if rule else 0
        lens = told.get(name, ())
        if rule is not None and rule.indexed_input is not None:
            continue
        if len(lens) == len(members) and sum(lens) == value.shape[dim]:
            ends[name] = dim, _totals(lens)
        elif (found := _find_ends(name, value.shape[dim], media, own)) is not None:
            ends[name] = dim, found
    return MediaShares(ends, frozenset(media.keys() - ends.keys()))


def find_media_lens_of_batch(boundaries: Tensor | None) -> Mapping[str, Sequence[int]]:
    """Return how much of each media input is each member's, of the batch with these boundaries; empty: not known."""
    return (TOLD_MEDIA_LENS.get(tuple(boundaries.tolist())) or {}) if boundaries is not None else {}


def _find_ends(name: str, length: int, media: Mapping[str, Tensor], types: Sequence[Tensor]) -> list[int] | None:
    """Return where the part of each member begins among `length` rows; None: nothing tells."""
    kind = _VIDEO if name.startswith("video_") or "_video" in name or name == "second_per_grid_ts" else _IMAGE
    kind = _SOUND if name.startswith((*SOUND_INPUTS, "feature_", "audio_", "audios_")) else kind
    kinds = [kind, *(one for one in _ID_NAMES if one != kind)]
    kind = next((one for one in kinds if any(bool((own == one).any()) for own in types)), 0)
    if not kind:
        return None
    num_tokens = _totals(int((own == kind).sum()) for own in types)
    grid = media.get(_GRIDS.get(kind, ""))
    if grid is not None and grid.dim() == 2:
        patches = _totals(grid.prod(-1).tolist())
        shares = _in_proportion(num_tokens, patches[-1])
        if shares is None or not set(shares) <= set(patches):
            return None
        return (
            shares if length == patches[-1] else [patches.index(one) for one in shares] if length == len(grid) else None
        )
    num_runs = _totals(_num_runs(own == kind) for own in types)
    return (
        num_runs if length == num_runs[-1] else _in_proportion(num_tokens, length) or _in_proportion(num_runs, length)
    )


def _totals(numbers: Iterable[int]) -> list[int]:
    return [*accumulate(numbers, initial=0)]


def _in_proportion(totals: Sequence[int], length: int) -> list[int] | None:
    """Scale running totals to end at `length`; None: they don't become whole numbers."""
    are_whole = all(one * length % totals[-1] == 0 for one in totals)
    return [one * length // totals[-1] for one in totals] if are_whole else None


def _num_runs(is_medium: Tensor) -> int:
    """Return how many runs of tokens of a medium there are, from bool [L]."""
    return int((is_medium & ~torch.nn.functional.pad(is_medium[:-1], (1, 0))).sum())
