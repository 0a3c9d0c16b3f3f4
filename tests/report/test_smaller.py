"""Fewer pixels are recommended with a share of dropped tokens that holds, whatever the images."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from energon_pack.plan.items import Lengths
from energon_pack.report.smaller import smaller_images
from energon_pack.samples.media.kinds import MEDIA_TYPES
from energon_pack.templates.families.rules import MediaRules

TEXT, IMAGE, VIDEO = (MEDIA_TYPES.index(name) for name in ("text", "image", "video"))
QWEN = cast(MediaRules, SimpleNamespace(settings={"factor": 28, "max_pixels": 16384 * 28**2, "do_resize": True}))


def lengths(*samples: tuple[int, int, int, int]) -> Lengths:
    """Samples by medium, tokens, visual tokens among these, images."""
    media, lens, visual, images = np.array(samples).T
    items = SimpleNamespace(media=media, counts={"num_visual_tokens": visual, "num_images": images})
    return cast(Lengths, SimpleNamespace(num_samples=len(samples), items=items, sample_lens=lens))


def said(found: Any) -> tuple[int, int, float] | None:
    return found and (found.max_pixels, found.tokens, round(found.dropped_tokens_share, 4))


def test_one_huge_picture_gets_the_largest_limit_that_fits() -> None:
    """100 tokens of text and an image of 16,000: 4096 tokens are too many for a pack of 4096, 2048 are not."""
    some = lengths((IMAGE, 16100, 16000, 1), *[(IMAGE, 1000, 900, 1)] * 20)
    assert said(smaller_images(some, QWEN, 4096)) == (2048 * 28**2, 2048, 0.0)


def test_what_pixels_do_not_help_stays_dropped() -> None:
    """A text of 5,000 tokens beside: 5,000 of 5,000 + 2,148 + 20,000 tokens are dropped with any limit."""
    some = lengths((TEXT, 5000, 0, 0), (IMAGE, 16100, 16000, 1), *[(IMAGE, 1000, 900, 1)] * 20)
    assert said(smaller_images(some, QWEN, 4096)) == (2048 * 28**2, 2048, 0.1842)
    assert smaller_images(lengths((TEXT, 5000, 0, 0)), QWEN, 4096) is None
    assert smaller_images(lengths((VIDEO, 50000, 49000, 0)), QWEN, 4096) is None


def test_models_of_tiles_get_none() -> None:
    tiles = cast(MediaRules, SimpleNamespace(settings={"tile": 448}))
    assert smaller_images(lengths((IMAGE, 16100, 16000, 1)), tiles, 4096) is None
    assert smaller_images(lengths((IMAGE, 16100, 16000, 1)), None, 4096) is None
