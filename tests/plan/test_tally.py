"""Percentiles of numbers counted in several calls equal those of one call."""

import math
from itertools import chain

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from energon_pack.plan.counted import Tally


@given(st.lists(st.lists(st.integers(0, 20), max_size=9), max_size=6))
def test_counted_in_parts_or_together(parts: list[list[int]]) -> None:
    tally, other = Tally(), Tally()
    for part in parts:
        tally.add(np.array(part, np.int32))
        other.merge(Tally(np.array(part, np.int32)))
    ordered = sorted(chain.from_iterable(parts))
    assert np.repeat(tally.values, tally.counts).tolist() == ordered
    assert (other.values.tolist(), other.counts.tolist()) == (tally.values.tolist(), tally.counts.tolist())
    assert (len(tally), tally.total) == (len(ordered), sum(ordered))
    if ordered:
        ranks = {"min": 0, "p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1}
        assert tally.spread() == {name: ordered[math.ceil(rank * (len(ordered) - 1))] for name, rank in ranks.items()}
    else:
        assert tally.spread() == {}
