"""Coefficients from measured steps: those that made the times, none below 0, and a table that says none is refused."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_pack.errors import PackError
from energon_pack.steps.cost import cost_model
from energon_pack.steps.fit import fit, nearest, read_times

NAMES = ("tokens", "len_squares", "visual_tokens", "visual_squares")


def steps(num: int = 40, **more: Any) -> list[dict[str, Any]]:
    """Steps that take 2 ms, 1 us a token, 1 ns a len² and 5 us a visual token."""
    rng = np.random.default_rng(0)
    made = []
    for _ in range(num):
        row = dict(zip(NAMES, rng.integers(1, [9000, 20_000_000, 4000, 2_000_000]).tolist(), strict=True))
        row["seconds"] = 2e-3 + 1e-6 * row["tokens"] + 1e-9 * row["len_squares"] + 5e-6 * row["visual_tokens"]
        made.append(row | more)
    return made


def saved(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_the_coefficients_that_made_the_times(tmp_path: Path) -> None:
    """Predicted steps of any number of ranks are as good as these."""
    found = fit(read_times(saved(tmp_path / "times.csv", steps())), cost_model(None), "times.csv")
    cost = found.cost
    assert (cost.lm_token, cost.lm_square, cost.vision_token, found.step) == pytest.approx((1e-6, 1e-9, 5e-6, 2e-3))
    assert cost.vision_square == pytest.approx(0, abs=1e-12)
    assert (cost.unit, cost.source, found.num_steps) == ("seconds", "times.csv", 40)
    assert found.worst_error < 1e-6
    assert cost.lm(np.array([1000])) == pytest.approx([2e-3])


def test_the_first_steps_and_padded_ones_do_not_count(tmp_path: Path) -> None:
    """benchmarks/gpu.py writes them, too; kernels are chosen in the first, and padding is no tokens."""
    slow = [row | {"layout": "packed", "step": i, "seconds": 9.0} for i, row in enumerate(steps(3))]
    padded = [row | {"layout": "padded", "step": 9, "seconds": 9.0} for row in steps(3)]
    rows = [*slow, *padded, *steps(20, layout="packed", step=3)]
    (tmp_path / "times.json").write_text(json.dumps(rows))
    for path in (saved(tmp_path / "times.csv", rows), tmp_path / "times.json"):
        assert len(read_times(path)["seconds"]) == 20


def test_text_alone_needs_no_columns_of_vision(tmp_path: Path) -> None:
    rows = [{name: row[name] for name in ("tokens", "len_squares", "seconds")} for row in steps()]
    assert read_times(saved(tmp_path / "times.csv", rows))["visual_tokens"].sum() == 0


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"tokens": 1, "seconds": 1}], "no table of tokens, len_squares"),
        ([{"tokens": 1, "len_squares": "x", "seconds": 1}], "no table of tokens"),
        (steps(4), "4 steps; at least 5"),
        (steps(5, seconds=0), "each over 0 seconds"),
        (steps(5, seconds="nan"), "seconds of a step is nan"),
        (steps(5, seconds="inf"), "seconds of a step is inf"),
        (steps(5, tokens=-3), "tokens of a step is -3"),
        (steps(5, tokens="9" * 200_000), "no table of tokens"),
    ],
)
def test_a_table_that_says_nothing_is_refused(rows: list[dict[str, Any]], said: str, tmp_path: Path) -> None:
    with pytest.raises(PackError, match=said):
        read_times(saved(tmp_path / "times.csv", rows))


@given(st.lists(st.lists(st.integers(-5, 5), min_size=4, max_size=4), min_size=1, max_size=8))
def test_nothing_is_nearer(rows: list[list[int]]) -> None:
    """The conditions of Karush, Kuhn and Tucker: more of no column helps, less of none that is used."""
    table = np.array(rows, np.float64)
    columns, values = table[:, :3], table[:, 3]
    found = nearest(columns, values)
    gradient = columns.T @ (columns @ found - values)
    assert (found >= 0).all()
    assert (gradient > -1e-6).all()
    assert gradient[found > 1e-9] == pytest.approx(0, abs=1e-6)
