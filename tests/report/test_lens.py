"""The length that is recommended is the one that the rule on the page says."""

import numpy as np
import pytest

from energon_pack.plan.compare_lens import Choice
from energon_pack.plan.settings import PackingConfig
from energon_pack.report.lens import lens_to_try, recommended


def choice(max_token_len: int, dropped: float, fill: float, packs: int = 10) -> Choice:
    return Choice(max_token_len, 0, 0.0, dropped, packs, fill)


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
def test_what_is_recommended(choices: list[Choice], expected: int | None) -> None:
    best = recommended(choices)
    assert (best and best.max_token_len) == expected


def test_the_planned_length_is_tried_too() -> None:
    assert lens_to_try([4096, 1000], PackingConfig(max_token_len=2560, pad_to_multiple_of=64)) == [960, 2560, 4096]


def test_a_draw_stands_for_all() -> None:
    assert Choice(8192, 10, 0.1, 0.2, 30, 0.9).scaled(2.5) == Choice(8192, 25, 0.1, 0.2, 75, 0.9)
    assert np.isclose(choice(1, 0.1, 0.2).scaled(3).fill, 0.2)
