"""Histograms with round edges."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

_BARS = 28

Numbers = npt.NDArray[Any]


@dataclass(frozen=True)
class Histogram:
    """Bars by kind. Bar i counts values from edge i to below edge i + 1; the last bar also counts values at its end."""

    edges: list[float]
    counts: dict[str, list[int]]

    @property
    def octaves(self) -> list[int]:
        """Return the indexes of the edges that are powers of two."""
        return [i for i, edge in enumerate(self.edges) if edge > 0 and math.log2(edge).is_integer()]


def log_histogram(
    values: Mapping[str, Numbers], upto: float = 0.0, counts: Mapping[str, Numbers] | None = None
) -> Histogram | None:
    """Count values into bars a half, a quarter … of an octave wide. None: there is no value.

    Args:
        values: by kind; positive.
        upto: a value that the edges have to include.
        counts: how often each value is there, by kind; None: once.
    """
    least, most = _range(values)
    if not most:
        return None
    most = max(most, upto)
    low, high = math.floor(math.log2(max(1.0, least))), math.floor(math.log2(max(1.0, most))) + 1
    per_octave = max(1, min(4, _BARS // (high - low)))
    edges = [2 ** (low + i / per_octave) for i in range((high - low) * per_octave + 1)]
    whole = sorted({float(round(edge)) for edge in edges})  # lengths are whole numbers
    return _counted(whole, values, counts or {})


def linear_histogram(values: Mapping[str, Numbers], share: int = 1, most: float = math.inf) -> Histogram | None:
    """Count values into bars of a round width, a whole number where the values are whole. None: there is no value.

    Args:
        values: by kind.
        share: each value stands for so many values.
        most: the largest possible value, and the last edge.
    """
    if not any(map(len, values.values())):
        return None
    bound, (least, most) = most, _range(values)
    is_whole = all(np.issubdtype(some.dtype, np.integer) for some in values.values())
    num_bars = min(_BARS, 6 + math.isqrt(sum(map(len, values.values()))))
    width = _round_up((most - least) / num_bars or most / num_bars or 1.0)
    width = max(1.0, width) if is_whole else width
    end = math.floor(most / width) + (most < bound)
    first = min(math.floor(least / width), end - 1)
    num = end - first
    return _counted(
        [(first + i) * width for i in range(num + 1)],
        values,
        {kind: np.full(len(some), share) for kind, some in values.items()},
    )


def _counted(edges: list[float], values: Mapping[str, Numbers], weights: Mapping[str, Numbers]) -> Histogram:
    counts = {kind: np.histogram(some, edges, weights=weights.get(kind))[0].tolist() for kind, some in values.items()}
    return Histogram(edges, counts)


def _range(values: Mapping[str, Numbers]) -> tuple[float, float]:
    some = [array for array in values.values() if len(array)]
    return (min(float(array.min()) for array in some), max(float(array.max()) for array in some)) if some else (0, 0)


def _round_up(width: float) -> float:
    """Round up to 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(width))
    return next(power * by for by in (1, 2, 5, 10) if width <= power * by * (1 + 1e-9))
