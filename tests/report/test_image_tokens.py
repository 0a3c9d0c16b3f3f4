"""Images that are all as large, or as small, as the model sees any are told from others, whatever the size rule."""

import numpy as np
import pytest

from energon_pack.report.image_tokens import tokens_of_images
from energon_pack.samples.media.medium import Media
from energon_pack.templates.families.qwen_vl import QwenVL
from energon_pack.templates.families.rules import ProcessorSettings


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
