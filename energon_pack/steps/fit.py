"""A cost model in seconds, from measured times of steps on one device.

table of steps (tokens, Σ len², visual tokens, Σ visual tokens² of an image, seconds) ──fit──► CostModel
"""

import csv
import json
from dataclasses import dataclass, replace
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import numpy as np

from energon_pack.errors import PackError, one_line
from energon_pack.steps.cost import CostModel, Floats

#: what `CostModel` has a coefficient of, by the column that it is of
_FIELDS = {
    "tokens": "lm_token", "len_squares": "lm_square", "visual_tokens": "vision_token", "visual_squares": "vision_square"
}  # fmt: skip
#: of a run: kernels are chosen, memory is asked for
_WARM = 3


@dataclass(frozen=True)
class Fit:
    """What the times say."""

    cost: CostModel
    #: seconds of a step beside what its tokens cost
    step: float
    num_steps: int
    #: of the fitted time of a step, relative: the mean, and the worst
    error: float
    worst_error: float


def fit(table: dict[str, Floats], cost: CostModel, source: str) -> Fit:
    """The coefficients, none below 0, that come nearest to all times, relative to each.

    Args:
        table: columns of `read_times`.
        cost: says how far an image's tokens see each other.
    """
    seconds = table["seconds"]
    columns = np.stack([*(table[name] for name in _FIELDS), np.ones(len(seconds))], axis=1) / seconds[:, None]
    coefficients = nearest(columns, np.ones(len(seconds)))
    errors = np.abs(columns @ coefficients - 1)
    *of_tokens, step = coefficients.tolist()
    fitted = dict(zip(_FIELDS.values(), of_tokens, strict=True))
    in_seconds = replace(cost, **fitted, lm_window=0.0, window=0.0, source=source, unit="seconds")
    return Fit(in_seconds, step, len(seconds), float(errors.mean()), float(errors.max()))


def nearest(columns: Floats, values: Floats) -> Floats:
    """The x ≥ 0 with the least |columns · x - values|: that of some set of columns has none below 0 by itself.

    Source: Lawson, Hanson, "Solving Least Squares Problems", 1974; with few columns all sets are tried.
    """
    num = columns.shape[1]
    scale = np.maximum(np.abs(columns).max(axis=0, initial=0), 1e-300)
    best, least = np.zeros(num), float(values @ values)
    for chosen in map(list, chain.from_iterable(combinations(range(num), size) for size in range(1, num + 1))):
        found = np.linalg.lstsq(columns[:, chosen] / scale[chosen], values, rcond=None)[0]
        left = float(((columns[:, chosen] / scale[chosen] @ found - values) ** 2).sum())
        if found.min() >= 0 and left < least - 1e-12:
            best, least = np.zeros(num), left
            best[chosen] = found / scale[chosen]
    return best


def read_times(path: Path) -> dict[str, Floats]:
    """A CSV, or a JSON list of objects, as columns; of the CSV of benchmarks/gpu.py packed steps after the first ones.

    Raises:
        PackError: no table, no seconds or tokens in it, or too few steps.
    """
    try:
        with open(path, newline="") as file:
            rows = json.load(file) if path.suffix == ".json" else list(csv.DictReader(file))
        rows = [row for row in rows if row.get("layout") != "padded" and int(row.get("step", _WARM)) >= _WARM]
        table = {name: np.array([_number(row, name) for row in rows]) for name in ("seconds", *_FIELDS)}
    except (AttributeError, KeyError, TypeError, ValueError, csv.Error) as error:
        columns = ", ".join([*_FIELDS, "seconds"])
        raise PackError(f"--times {path}: no table of {columns} ({one_line(error)})") from None
    if len(rows) < len(_FIELDS) + 1 or table["seconds"].min() <= 0:
        raise PackError(f"--times {path}: {len(rows)} steps; at least {len(_FIELDS) + 1}, each over 0 seconds")
    for name, values in table.items():
        for value in values[~np.isfinite(values) | (values < 0)][:1]:
            raise PackError(f"--times {path}: {name} of a step is {value:g}: no count and no time")
    return table


def _number(row: dict[str, Any], name: str) -> float:
    """A cell; text alone has nothing visual."""
    return float(row.get(name) or 0 if name.startswith("visual") else row[name])
