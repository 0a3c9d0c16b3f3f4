"""Turn the tokens of members into the columns of their pack, which are written."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from energon_pack.samples.media.kinds import KINDS
from energon_pack.samples.member import OPERATIONS, JoinedTokens, MemberTokens
from energon_pack.samples.pack_tokens import COLUMN_TYPES, Array, PackTokens

#: an id is kept once if it comes at least so often in a row
_MIN_REPEATS = 4


def join_member_tokens(members: Sequence[MemberTokens]) -> PackTokens:
    """Join the tokens of a pack's members (ids, trained spans, weights, media) into the columns of one pack."""
    text = JoinedTokens.of_members(members)
    media = [medium for member in members for medium in member.media]
    steps = [step for medium in media for step in medium.steps]
    videos = [medium for medium in media if medium.frames]
    lists: dict[str, Sequence[float]] = {
        "length": text.lens.tolist(),
        "shared_len": empty_if_all_default([member.shared_len for member in members]),
        "factor": empty_if_all_default([member.factor for member in members], 1),
        "num_media": empty_if_all_default([len(member.media) for member in members]),
        "start": text.spans[:, 0].tolist(),
        "end": text.spans[:, 1].tolist(),
        "weight": empty_if_all_default([] if text.weights is None else text.weights.tolist(), 1),
        "kind": [ord(KINDS[medium.kind].letter) for medium in media],
        "num_images": empty_if_all_default([medium.num_images for medium in media]),
        "num_features": [medium.num_features for medium in media],
        "width": empty_if_all_default([medium.width for medium in media]),
        "height": empty_if_all_default([medium.height for medium in media]),
        "num_steps": empty_if_all_default([len(medium.steps) for medium in media]),
        "num_samples": empty_if_all_default([medium.num_samples for medium in media]),
        "operation": [OPERATIONS.index(step.operation) for step in steps],
        "new_width": [step.width for step in steps],
        "new_height": [step.height for step in steps],
        "num_frames": empty_if_all_default([len(medium.frames) for medium in media]),
        "num_in_source": [medium.num_in_source for medium in videos],
        "fps": [medium.fps for medium in videos],
        "frame": [frame for medium in videos for frame in medium.frames],
    }
    return PackTokens(
        {name: np.array(rows, COLUMN_TYPES[name]) for name, rows in lists.items() if rows}
        | split_token_ids_into_columns(text.ids)
    )


def split_token_ids_into_columns(token_ids: npt.NDArray[np.int64]) -> dict[str, Array]:
    """Split token ids below 2³¹ into the columns `low`, `high`, `repeated` and `num_more` (see `COLUMN_TYPES`)."""
    starts = np.flatnonzero(np.diff(token_ids, prepend=-1))
    times = np.diff(starts, append=len(token_ids))
    is_run = times >= _MIN_REPEATS
    places, num_more = starts[is_run], times[is_run] - 1
    kept = np.ones(len(token_ids), bool)
    for place, more in zip(places.tolist(), num_more.tolist(), strict=True):
        kept[place + 1 : place + 1 + more] = False
    once = token_ids[kept] if len(places) else token_ids
    num_planes = max(0, int(once.max(initial=0)).bit_length() - 16)
    high = (once >> 16).astype(np.uint16)
    planes = [np.packbits((high >> bit & 1).astype(bool)) for bit in range(num_planes)]
    return {
        "low": once.astype(np.uint16),
        "high": np.concatenate([np.zeros(0, np.uint8), *planes]),
        "repeated": places - (np.cumsum(num_more) - num_more),
        "num_more": num_more,
    }


def empty_if_all_default(values: Sequence[float], default: float = 0) -> Sequence[float]:
    """Return the entries of a column, or an empty list if all of them equal its default."""
    return values if any(value != default for value in values) else ()
