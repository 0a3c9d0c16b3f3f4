"""Images at the limits of the model are told from others, and a few large media are named with their cure."""

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from energon_pack.plan.items import Lengths
from energon_pack.report.images import media_first, tokens_of_images
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


LENS = (1024, 2048, 4096, 8192, 16384)


def test_a_few_large_pictures_come_before_a_longer_pack() -> None:
    """10 pictures of 12 Mpx were 1.7 % of the samples and 26 % of the tokens: "16,384 is right, nothing stands out"."""
    some = lengths(*[(IMAGE, 16100, 16000, 1)] * 10, *[(TEXT, 800, 0, 0)] * 590)
    first = media_first(some, QWEN, LENS)
    assert first is not None
    assert (first.knob, first.samples, first.needed, first.needed_then) == (
        f"model.max_pixels={768 * 28**2}",
        10,
        16384,
        1024,
    )
    assert (first.tokens, first.tokens_then) == (161_000 + 472_000, 8_680 + 472_000)
    assert str(first) == (
        "pixels and frames first: 10 image samples alone need packs of 16,384 tokens; with model.max_pixels=602112 all"
        " fit 1,024, and 633k tokens become 481k, Σ len² (attention) 2.97G → 385M"
    )


def test_of_videos_it_is_told_what_all_others_need() -> None:
    first = media_first(lengths((VIDEO, 9000, 8900, 0), *[(TEXT, 800, 0, 0)] * 20), QWEN, LENS)
    assert first is not None
    assert str(first) == (
        "pixels and frames first: 1 video sample alone needs packs of 16,384 tokens; media=fps media.fps=1; all others"
        " fit 1,024, and of 25k tokens have 16k, Σ len² (attention) 93.8M → 12.8M"
    )


@pytest.mark.parametrize(
    "samples",
    [[(TEXT, 9000, 0, 0), (TEXT, 800, 0, 0)], [(IMAGE, 9000, 8900, 1)] * 2 + [(TEXT, 800, 0, 0)], [(TEXT, 9, 0, 0)]],
    ids=["text", "most samples", "short"],
)
def test_where_no_few_media_make_packs_long(samples: list[tuple[int, int, int, int]]) -> None:
    assert media_first(lengths(*samples), QWEN, LENS) is None


def test_models_of_tiles_have_no_limit_of_pixels() -> None:
    tiles = cast(MediaRules, SimpleNamespace(settings={"tile": 448}))
    some = lengths((IMAGE, 16100, 16000, 1), *[(TEXT, 800, 0, 0)] * 20)
    assert media_first(some, tiles, LENS) is None
    assert media_first(some, None, LENS) is None
