"""Histograms count each value once, in bars with round edges."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from energon_pack.report.shapes import linear_histogram, log_histogram

values = st.lists(st.integers(1, 10**7), min_size=1, max_size=50)


@given(values, st.integers(0, 10**6))
def test_each_length_is_counted_once(lens: list[int], upto: int) -> None:
    shape = log_histogram({"text": np.array(lens, np.int32)}, upto)
    assert shape is not None
    assert sum(shape.counts["text"]) == len(lens)
    assert shape.edges[0] <= min(lens)
    assert shape.edges[-1] >= max(*lens, upto)
    assert len(shape.edges) <= 40


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=50))
def test_each_pack_is_counted_once(costs: list[int]) -> None:
    shape = linear_histogram({"image": np.array(costs, np.int64)})
    assert shape is not None
    assert sum(shape.counts["image"]) == len(costs)
    assert len(shape.edges) <= 40


def test_round_edges() -> None:
    shape = linear_histogram({"text": np.array([0, 7, 19])})
    assert shape is not None
    assert shape.edges == [0, 5, 10, 15, 20]
    assert shape.counts == {"text": [1, 1, 0, 1]}


def test_octaves_are_labelled() -> None:
    shape = log_histogram({"text": np.array([40, 200])})
    assert shape is not None
    assert [shape.edges[i] for i in shape.octaves] == [32, 64, 128, 256]


def test_nothing_has_no_shape() -> None:
    assert log_histogram({}) is None
    assert linear_histogram({"text": np.zeros(0, np.int64)}) is None
