"""The length that is recommended is the one that the rule on the page says."""

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from energon_pack.plan import caps
from energon_pack.plan.items import Items, Lengths
from energon_pack.plan.pack_lengths import Choice
from energon_pack.plan.settings import Algorithm, PackingConfig
from energon_pack.report.which_length import does, job_of, lengths_to_try, recommended


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
    assert (best and best.choice.max_token_len) == expected


def test_what_is_said_of_the_rule() -> None:
    """The rule that holds, and not all that might: a reader had to read three clauses to find out which did."""
    some = [choice(2048, 0.0, 0.90, packs=99), choice(4096, 0.0, 0.94, packs=99)]
    assert [best.rule if (best := recommended(of)) else None for of in (some, [choice(64, 0.9, 1.0)])] == [
        "the fullest that drops at most 1% of the tokens; none of these fills 95% of its packs",
        "the longest that was tried, for none drops at most 1% of the tokens",
    ]


def test_few_packs_need_not_be_full() -> None:
    """Twelve packs where twelve are the least are as good as a fuller plan: the last one is never full."""
    assert does(choice(8192, 0.0, 0.935, packs=12))
    assert not does(choice(8192, 0.0, 0.90, packs=12))
    assert not does(choice(8192, 0.02, 0.99, packs=12))


def test_the_planned_length_and_one_for_all_samples_are_tried() -> None:
    """With the longest sample of 16,569 tokens doublings offer 32,768, and 17,408 would do."""
    assert lengths_to_try([4096, 1000], PackingConfig(max_token_len=2560, pad_to_multiple_of=64)) == [960, 2560, 4096]
    assert lengths_to_try([4096, 32768], PackingConfig(max_token_len=4096), 16569) == [4096, 17408, 32768]
    assert lengths_to_try([4096], PackingConfig(max_token_len=8192), 5000) == [4096, 8192]


def test_no_length_is_above_the_positions_of_the_model() -> None:
    """For a model of 128,000 positions 203,776 was recommended."""
    assert lengths_to_try([4096], PackingConfig(max_token_len=8192), 200_000, 128_000) == [4096, 8192, 128_000]
    beyond = replace(choice(203_776, 0.0, 0.99), is_beyond_model=True)
    best = recommended([choice(65_536, 0.3, 0.99), beyond])
    assert best is not None
    assert best.choice.max_token_len == 65_536
    assert recommended([beyond]) is None


def test_the_rule_agrees_with_its_figures() -> None:
    """`fills 95 %` was said of a length that fills 84.65 %, and has as few packs as any."""
    rules = [best.rule for fill in (0.96, 0.92) if (best := recommended([choice(8192, 0.0, fill, packs=10)]))]
    keeps = "the shortest that drops at most 1% of the tokens and"
    assert rules == [f"{keeps} fills 95% of its packs", f"{keeps} has as few packs as any plan"]


def test_a_draw_stands_for_all() -> None:
    assert Choice(8192, 10, 0.1, 0.2, 30, 0.9).scaled(2.5) == Choice(8192, 25, 0.1, 0.2, 75, 0.9)
    assert np.isclose(choice(1, 0.1, 0.2).scaled(3).fill, 0.2)


@pytest.mark.parametrize(("num_samples", "algorithm"), [(2_000, Algorithm.auto), (2_001, Algorithm.optimal)])
def test_an_estimate_counts_packs_and_does_not_make_them_even(num_samples: int, algorithm: Algorithm) -> None:
    """Even packs of a draw took three quarters of the time of the table, and nobody reads them."""
    zeros = np.zeros(num_samples, np.int32)
    items = Items(
        dict.fromkeys(caps.COLUMNS, zeros) | {"token_len": zeros + 7},
        zeros.astype(np.int8), zeros, zeros, zeros.astype(np.int8), zeros + 1,
    )  # fmt: skip
    lengths = cast(Lengths, SimpleNamespace(items=items, seed=0))
    tried, packing, *_ = job_of(lengths, PackingConfig(max_token_len=64), [128])
    assert (len(tried), packing.algorithm) == (2_000, algorithm)
