"""Estimate what a smaller `max_pixels` would do to samples longer than a pack: bounds, computed from counts.

An image of at most `max_pixels` has at most `max_pixels / factor²` tokens, and a sample of n images at most n times as
many. So no image has to be read again.
"""

from typing import NamedTuple

import numpy as np

from energon_pack.plan.items import Lengths
from energon_pack.report.lens import MOST_DROPPED
from energon_pack.run.scratch import blocks
from energon_pack.samples.media.kinds import IMAGE, MEDIA_TYPES
from energon_pack.templates.families.rules import MediaRules

_FEWEST = 256  # tokens of an image; with fewer it shows little


class SmallerImages(NamedTuple):
    """A limit of pixels that drops few tokens."""

    max_pixels: int
    tokens: int  # most tokens of an image
    dropped_tokens_share: float  # an upper bound


def smaller_images(lengths: Lengths, rules: MediaRules | None, room: int) -> SmallerImages | None:
    """Return the largest of some limits that drops at most `MOST_DROPPED` more of the tokens than the best of them.

    Args:
        rules: of the model's media.
        room: tokens that a sample may have, without its padding.

    Returns:
        None: no limit halves the dropped tokens, or the model's tokens are not squares of pixels.
    """
    settings = rules.settings if rules else {}
    if not (settings.get("factor") and settings.get("max_pixels") and settings.get("do_resize")):
        return None
    square = int(settings["factor"]) ** 2
    most = int(settings["max_pixels"]) // square
    limits = [limit for limit in (_FEWEST << step for step in range(20)) if limit < most]
    dropped = {limit: _dropped(lengths, room, limit) for limit in [*limits, most]}
    least = min(dropped.values())
    tokens = max(limit for limit, share in dropped.items() if share <= least + MOST_DROPPED)
    share = dropped[tokens]
    return SmallerImages(tokens * square, tokens, share) if share < dropped[most] / 2 else None


def _dropped(lengths: Lengths, room: int, most: int) -> float:
    """Bound the share of tokens in samples that are too long, if an image has at most `most` tokens."""
    dropped = tokens = 0
    for block in blocks(lengths.num_samples):
        items, lens = lengths.items, lengths.sample_lens[block].astype(np.int64)
        images, visual = (items.counts[name][block].astype(np.int64) for name in ("num_images", "num_visual_tokens"))
        has_images_alone = items.media[block] == MEDIA_TYPES.index(IMAGE.kind)
        lens -= np.where(has_images_alone, np.maximum(visual - images * most, 0), 0)
        dropped += int(lens[lens > room].sum())
        tokens += int(lens.sum())
    return dropped / max(1, tokens)
