"""What the sizes of images say: whether the model's limits bind, and what fewer pixels would do.

An image of at most `max_pixels` has at most `max_pixels / factor²` tokens, and a sample of n images at most n times as
many. So no image has to be read again.
"""

import math
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from energon_pack.plan.items import AnyInts, Lengths
from energon_pack.report.which_length import MOST_DROPPED
from energon_pack.run.scratch import blocks
from energon_pack.samples.media.kinds import IMAGE, MEDIA_TYPES
from energon_pack.samples.media.medium import Media
from energon_pack.samples.skip import Skip
from energon_pack.templates.families.rules import MediaRules

#: width and height of the smallest images and of the largest; some are flat, because rules that cut tiles like these
#: best
_SMALLEST = ((16, 16), (32, 32), (64, 64))
_LARGEST = ((16_000, 16_000), (16_000, 8_000), (8_000, 16_000), (16_000, 5_000))
_NEAR = 0.1  # share of the bound that still counts as near


@dataclass(frozen=True)
class TokensOfImages:
    """How many visual tokens an image has, counted over samples that hold images and no other media."""

    least: int  # tokens that any image has, whatever its size
    most: int
    samples: int
    at_least: int  # samples whose images have about the fewest tokens
    at_most: int


def tokens_of_images(
    rules: MediaRules | None, visual: AnyInts, num_images: AnyInts, counts: AnyInts
) -> TokensOfImages | None:
    """Count how many tokens images have, between the bounds of the model's rules.

    Args:
        visual, num_images: visual tokens and images of a sample.
        counts: how many samples have these two numbers.
    """
    bounds = _bounds(rules) if rules and len(visual) else None
    if bounds is None:
        return None
    least, most = bounds
    each = visual / np.maximum(num_images, 1)
    # Each side is rounded to whole tokens, which matters where there are few.
    near_least = max(least * (1 + _NEAR), (math.sqrt(least) + 1) ** 2)
    near_most = min(most * (1 - _NEAR), (math.sqrt(most) - 1) ** 2)
    at_least, at_most = (int(counts[of].sum()) for of in (each <= near_least, each >= near_most))
    return TokensOfImages(least, most, int(counts.sum()), at_least, at_most)


def _bounds(rules: MediaRules) -> tuple[int, int] | None:
    """Return the visual tokens of the smallest image and of the largest; None: the model sees no images."""
    found = []
    for width, height in (*_SMALLEST, *_LARGEST):
        with suppress(Skip):
            found.append(rules.expand(Media(IMAGE.kind, width, height), [])[1])
    return (min(found), max(found)) if found else None


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
