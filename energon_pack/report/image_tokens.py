"""Count whether images have the most, or the fewest, tokens the model allows: then its size settings limit them."""

import math
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from energon_pack.plan.items import AnyInts
from energon_pack.samples.media.kinds import IMAGE
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
