"""Arrays in files are the same as arrays in memory, and nothing is left of them."""

import gc
from pathlib import Path

import numpy as np
import pytest

from energon_pack.run.scratch import Scratch, blocks


@pytest.mark.parametrize("folder", [None, Path("not/there/yet")])
def test_a_column_is_what_was_added(tmp_path: Path, folder: Path | None) -> None:
    column = Scratch(folder and tmp_path / folder).column(np.int32)
    for values in (np.arange(3), np.zeros(0, np.int64), np.array([-1])):
        column.add(values)
    found = column.array()
    assert found.tolist() == [0, 1, 2, -1]
    assert found.dtype == np.int32
    assert type(found) is np.ndarray


@pytest.mark.parametrize("on_disk", [False, True])
def test_an_array_of_zeros_can_be_written_to(tmp_path: Path, on_disk: bool) -> None:
    found = Scratch(tmp_path if on_disk else None).zeros(5, np.int64)
    found[np.array([4, 1])] = 7, 3
    assert found.tolist() == [0, 3, 0, 0, 7]


def test_arrays_may_be_empty(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    assert len(scratch.column(np.int8).array()) == len(scratch.zeros(0, np.int8)) == 0


def test_no_file_is_left_even_of_an_array_that_is_at_work(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    unfinished, column = scratch.column(np.int64), scratch.column(np.int64)
    unfinished.add(np.arange(5))
    column.add(np.arange(1000))
    found = column.array()
    assert [*tmp_path.iterdir()] == []
    del unfinished, column
    gc.collect()  # a file that was left open would be a warning here
    assert found.sum() == 499_500


def test_blocks_are_all_of_it_and_small_where_each_is_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("energon_pack.run.scratch.AT_WORK", 10)
    assert [*blocks(25)] == [slice(0, 10), slice(10, 20), slice(20, 25)]
    assert [*blocks(5, each=4.0)] == [slice(0, 2), slice(2, 4), slice(4, 5)]
    assert len([*blocks(3, each=99.0)]) == 3
    assert [*blocks(0)] == []
