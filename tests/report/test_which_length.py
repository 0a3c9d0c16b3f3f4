"""The length that is recommended is the one that the rule on the page says."""

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from energon_pack.plan.items import Items, Lengths
from energon_pack.plan.pack_lengths import TriedLength
from energon_pack.plan.settings import CAPPED_COLUMNS, Algorithm, PackingConfig
from energon_pack.report.advice import (
    advise_to_shrink_media,
    count_images_at_token_bounds,
    drops_little_and_fills_packs,
    lengths_to_try,
    lengths_trial_job_of,
    recommend_length,
)
from energon_pack.samples.media.kinds import MEDIA_TYPES
from energon_pack.samples.media.medium import Media
from energon_pack.templates.families.qwen_vl import QwenVL
from energon_pack.templates.families.rules import MediaRules, ProcessorSettings


def choice(max_token_len: int, dropped: float, fill: float, packs: int = 10) -> TriedLength:
    return TriedLength(max_token_len, 0, 0.0, dropped, packs, fill)


@pytest.mark.parametrize(
    ("choices", "expected"),
    [
        ([choice(2048, 0.02, 0.99), choice(4096, 0.01, 0.96), choice(8192, 0.0, 0.99)], 4096),
        ([choice(2048, 0.0, 0.90), choice(4096, 0.0, 0.94), choice(8192, 0.0, 0.80)], 4096),
        ([choice(2048, 0.5, 0.99), choice(4096, 0.2, 0.90)], 4096),
        ([choice(2048, 1.0, 0.0, packs=0)], None),
        ([], None),
    ],
    ids=["the shortest that does both", "the fullest", "the longest", "nothing fits", "nothing"],
)
def test_what_is_recommended(choices: list[TriedLength], expected: int | None) -> None:
    best = recommend_length(choices)
    assert (best and best.choice.max_token_len) == expected


def test_what_is_said_of_the_rule() -> None:
    """The rule that holds, and not all that might: a reader had to read three clauses to find out which did."""
    some = [choice(2048, 0.0, 0.90, packs=99), choice(4096, 0.0, 0.94, packs=99)]
    assert [best.rule if (best := recommend_length(of)) else None for of in (some, [choice(64, 0.9, 1.0)])] == [
        "the fullest that drops at most 1% of the tokens; none of these fills 95% of its packs",
        "the longest that was tried, for none drops at most 1% of the tokens",
    ]


def test_few_packs_need_not_be_full() -> None:
    """Twelve packs where twelve are the least are as good as a fuller plan: the last one is never full."""
    assert [
        drops_little_and_fills_packs(choice(8192, *of, packs=12)) for of in ((0.0, 0.935), (0.0, 0.90), (0.02, 0.99))
    ] == [
        True,
        False,
        False,
    ]


def test_the_planned_length_and_one_for_all_samples_are_tried() -> None:
    """With the longest sample of 16,569 tokens doublings offer 32,768, and 17,408 would do."""
    assert lengths_to_try([4096, 1000], PackingConfig(max_token_len=2560, pad_to_multiple_of=64)) == [960, 2560, 4096]
    assert lengths_to_try([4096, 32768], PackingConfig(max_token_len=4096), 16569) == [4096, 17408, 32768]
    assert lengths_to_try([4096], PackingConfig(max_token_len=8192), 5000) == [4096, 8192]


def test_no_length_is_above_the_positions_of_the_model() -> None:
    """For a model of 128,000 positions 203,776 was recommended."""
    assert lengths_to_try([4096], PackingConfig(max_token_len=8192), 200_000, 128_000) == [4096, 8192, 128_000]
    beyond = replace(choice(203_776, 0.0, 0.99), is_beyond_model=True)
    best = recommend_length([choice(65_536, 0.3, 0.99), beyond])
    assert best is not None
    assert best.choice.max_token_len == 65_536
    assert recommend_length([beyond]) is None


def test_the_rule_agrees_with_its_figures() -> None:
    """`fills 95 %` was said of a length that fills 84.65 %, and has as few packs as any."""
    rules = [best.rule for fill in (0.96, 0.92) if (best := recommend_length([choice(8192, 0.0, fill, packs=10)]))]
    keeps = "the shortest that drops at most 1% of the tokens and"
    assert rules == [f"{keeps} fills 95% of its packs", f"{keeps} has as few packs as any plan"]


def test_a_draw_stands_for_all() -> None:
    assert TriedLength(8192, 10, 0.1, 0.2, 30, 0.9).scaled(2.5) == TriedLength(8192, 25, 0.1, 0.2, 75, 0.9)
    assert np.isclose(choice(1, 0.1, 0.2).scaled(3).fill, 0.2)


@pytest.mark.parametrize(("num_samples", "algorithm"), [(2_000, Algorithm.auto), (2_001, Algorithm.optimal)])
def test_an_estimate_counts_packs_and_does_not_make_them_even(num_samples: int, algorithm: Algorithm) -> None:
    """Even packs of a draw took three quarters of the time of the table, and nobody reads them."""
    zeros = np.zeros(num_samples, np.int32)
    items = Items(
        dict.fromkeys(CAPPED_COLUMNS, zeros) | {"token_len": zeros + 7},
        zeros.astype(np.int8), zeros, zeros, zeros.astype(np.int8), zeros + 1,
    )  # fmt: skip
    lengths = cast(Lengths, SimpleNamespace(items=items, seed=0, has_pairs=False))
    tried, packing, *_ = lengths_trial_job_of(lengths, PackingConfig(max_token_len=64), [128])
    assert (len(tried), packing.algorithm) == (2_000, algorithm)


def rules(min_pixels: int, max_pixels: int) -> QwenVL:
    size = {"shortest_edge": min_pixels, "longest_edge": max_pixels}
    return QwenVL(ProcessorSettings(image={"patch_size": 14, "merge_size": 2, "size": size}))


def tokens(of: QwenVL, sizes: list[tuple[int, int]]) -> np.ndarray:
    return np.array([of.expand(Media("image", width, height), [])[1] for width, height in sizes])


PHOTOGRAPHS = [(4000, 3000), (3000, 4000), (1920, 1080), (2000, 2000), (5304, 3540)]


@pytest.mark.parametrize(
    ("max_pixels", "sizes", "at_most", "at_least"),
    [
        # a limit of few tokens is rounded coarsely: 40,000 pixels are 51 tokens, and 4000 × 3000 has 40 of them
        *((max_pixels, PHOTOGRAPHS, 5, 0) for max_pixels in (40_000, 200_000, 1_003_520)),
        (12_845_056, [(640, 480), (800, 600), (1024, 768)], 0, 0),  # as they are
        (12_845_056, [(16, 16), (32, 32), (50, 60)], 0, 3),  # icons
    ],
)
def test_images_at_the_limits(max_pixels: int, sizes: list[tuple[int, int]], at_most: int, at_least: int) -> None:
    of = rules(3136, max_pixels)
    found = count_images_at_token_bounds(of, tokens(of, sizes), *np.ones((2, len(sizes)), np.int64))
    assert found is not None
    assert (found.samples, found.least, found.num_at_most, found.num_at_least) == (len(sizes), 4, at_most, at_least)
    assert found.most == pytest.approx(max_pixels / 784, rel=0.01 if max_pixels > 10**6 else 0.1)


def test_images_of_samples_with_several_or_none() -> None:
    """With at most 51 tokens an image, two of 49 count as largest; two of 25 do not, though they sum to 50."""
    found = count_images_at_token_bounds(rules(3136, 40_000), np.array([98, 50]), np.array([2, 2]), np.array([3, 5]))
    assert found is not None
    assert (found.samples, found.num_at_most) == (8, 3)
    assert count_images_at_token_bounds(None, *np.array([[5], [1], [1]])) is None
    assert count_images_at_token_bounds(rules(3136, 40_000), *np.zeros((3, 0), np.int64)) is None


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
    first = advise_to_shrink_media(some, QWEN, LENS)
    assert first is not None
    assert (first.knob, first.samples, first.needed_len, first.needed_len_after) == (
        f"model.max_pixels={768 * 28**2}",
        10,
        16384,
        1024,
    )
    assert (first.tokens, first.tokens_after) == (161_000 + 472_000, 8_680 + 472_000)
    assert str(first) == (
        "pixels and frames first: 10 image samples alone need packs of 16,384 tokens; with model.max_pixels=602112 all"
        " fit 1,024, and 633k tokens become 481k, the cost of attention 2.97G → 385M"
    )


def test_of_videos_it_is_told_what_all_others_need() -> None:
    first = advise_to_shrink_media(lengths((VIDEO, 9000, 8900, 0), *[(TEXT, 800, 0, 0)] * 20), QWEN, LENS)
    assert first is not None
    assert str(first) == (
        "pixels and frames first: 1 video sample alone needs packs of 16,384 tokens; media=fps media.fps=1; all others"
        " fit 1,024, and of 25k tokens have 16k, the cost of attention 93.8M → 12.8M"
    )


@pytest.mark.parametrize(
    "samples",
    [[(TEXT, 9000, 0, 0), (TEXT, 800, 0, 0)], [(IMAGE, 9000, 8900, 1)] * 2 + [(TEXT, 800, 0, 0)], [(TEXT, 9, 0, 0)]],
    ids=["text", "most samples", "short"],
)
def test_where_no_few_media_make_packs_long(samples: list[tuple[int, int, int, int]]) -> None:
    assert advise_to_shrink_media(lengths(*samples), QWEN, LENS) is None


def test_models_of_tiles_have_no_limit_of_pixels() -> None:
    tiles = cast(MediaRules, SimpleNamespace(settings={"tile": 448}))
    some = lengths((IMAGE, 16100, 16000, 1), *[(TEXT, 800, 0, 0)] * 20)
    assert advise_to_shrink_media(some, tiles, LENS) is None
    assert advise_to_shrink_media(some, None, LENS) is None
