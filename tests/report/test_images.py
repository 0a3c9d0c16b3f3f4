"""Images at the limits of the model are told from others, and fewer pixels are recommended with a share that holds."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from energon_pack.plan.items import Lengths
from energon_pack.report.images import smaller_images, tokens_of_images
from energon_pack.samples.media.kinds import MEDIA_TYPES
from energon_pack.samples.media.medium import Media
from energon_pack.templates.families.qwen_vl import QwenVL
from energon_pack.templates.families.rules import MediaRules, ProcessorSettings


def rules(min_pixels: int, max_pixels: int) -> QwenVL:
    size = {"shortest_edge": min_pixels, "longest_edge": max_pixels}
    return QwenVL(ProcessorSettings(image={"patch_size": 14, "merge_size": 2, "size": size}))


def tokens(of: QwenVL, sizes: list[tuple[int, int]]) -> np.ndarray:
    return np.array([of.expand(Media("image", width, height), [])[1] for width, height in sizes])


PHOTOGRAPHS = [(4000, 3000), (3000, 4000), (1920, 1080), (2000, 2000), (5304, 3540)]


@pytest.mark.parametrize("max_pixels", [40_000, 200_000, 1_003_520])
def test_photographs_that_are_shrunk_to_the_limit(max_pixels: int) -> None:
    """A limit of few tokens is rounded coarsely: 40,000 pixels are 51 tokens, and 4000 × 3000 has 40 of them."""
    of = rules(3136, max_pixels)
    found = tokens_of_images(of, tokens(of, PHOTOGRAPHS), *np.ones((2, 5), np.int64))
    assert found is not None
    assert (found.samples, found.at_most, found.at_least) == (5, 5, 0)


def test_photographs_as_they_are() -> None:
    of = rules(3136, 12_845_056)
    small = [(640, 480), (800, 600), (1024, 768)]
    found = tokens_of_images(of, tokens(of, small), *np.ones((2, 3), np.int64))
    assert found is not None
    assert (found.least, found.at_most, found.at_least) == (4, 0, 0)
    assert found.most == pytest.approx(16384, rel=0.01)


def test_icons() -> None:
    of = rules(3136, 12_845_056)
    found = tokens_of_images(of, tokens(of, [(16, 16), (32, 32), (50, 60)]), *np.ones((2, 3), np.int64))
    assert found is not None
    assert (found.at_least, found.at_most) == (3, 0)


def test_several_images_of_a_sample_count_each() -> None:
    """With at most 51 tokens an image, two of 49 count as largest; two of 25 do not, though they sum to 50."""
    found = tokens_of_images(rules(3136, 40_000), np.array([98, 50]), np.array([2, 2]), np.array([3, 5]))
    assert found is not None
    assert (found.samples, found.at_most) == (8, 3)


def test_without_images_or_rules() -> None:
    assert tokens_of_images(None, *np.array([[5], [1], [1]])) is None
    assert tokens_of_images(rules(3136, 40_000), *np.zeros((3, 0), np.int64)) is None


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
