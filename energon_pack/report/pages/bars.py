"""Draw numbers as bars of HTML, in the colours of the page, each with a tooltip. Letters stay as large as the page's.

    strip       |text text|image|padding|         one bar, cut into pieces
    histogram    64 – 128   |||||     12           a strip for each range of values
                128 – 256   |||||||   21
    barred      47.19% with a bar behind it        a number of a table, by its share of the largest

Colours follow kinds, the classes `of-<kind>` of style.css: text, image, video, audio, mix, unknown, padding.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from energon_pack.report.pages.html import Cell, Html, tag

_MAX_BARS = 20
_ROUNDED_UP = 0.9995  # share of a unit; in three digits it is written as one
_MIN_WIDTH = 0.1  # percent: the least width of a piece, so that it is seen


class Piece(NamedTuple):
    """A coloured piece of a bar: `size` in the bar's unit, `kind` for the colour."""

    kind: str
    size: float
    label: str  # its tooltip
    is_odd: bool = False  # drawn paler, to tell it from a neighbour of the same kind


def draw_segmented_bar(pieces: Sequence[Piece], total: float, shows_padding: bool = True) -> Html:
    """Draw one bar of coloured pieces; with `shows_padding`, a last piece shows the rest up to `total` as padding."""
    used = sum(piece.size for piece in pieces)
    rest = (
        [Piece("padding", total - used, f"padding: {short_number(total - used)}")]
        if shows_padding and total > used
        else []
    )
    drawn = [
        tag(
            "i",
            title=label,
            class_=f"of-{kind}{' odd' * is_odd}",
            style=f"width:{max(_MIN_WIDTH, 100 * size / total):.2f}%",
        )
        for kind, size, label, is_odd in (*pieces, *rest)
    ]
    sums: dict[str, float] = {}
    for piece in (*pieces, *rest):
        sums[piece.kind] = sums.get(piece.kind, 0.0) + piece.size
    sums_text = ", ".join(f"{kind} {short_number(size)}" for kind, size in sums.items())
    return tag("div", *drawn, class_="strip", role="img", aria_label=sums_text)


def draw_colour_legend(kinds: Mapping[str, object]) -> Html | None:
    """Draw a key that says which colour stands for which kind; None: there are fewer than two kinds."""
    if len(kinds) < 2:
        return None
    return tag("div", *(tag("span", tag("i", class_=f"of-{kind}"), kind) for kind in kinds), class_="legend")


def make_bar_cell(text: str, filled_share: float) -> Cell:
    """Return a table cell with a bar behind its text, as long as a share (0 to 1) of the column's width."""
    return Cell(text, tag("span", text, class_="bar", style=f"--share:{100 * min(1.0, max(0.0, filled_share)):.1f}%"))


@dataclass(frozen=True)
class Histogram:
    """How many values of each kind lie between edges: count i is from edge i to below edge i + 1.

    The last count includes values at the last edge.
    """

    edges: list[float]
    counts: dict[str, list[int]]


def log_histogram(
    values: Mapping[str, npt.NDArray[Any]], mark: float = 0.0, counts: Mapping[str, npt.NDArray[Any]] | None = None
) -> Histogram | None:
    """Count numbers into ranges on a logarithmic scale (octaves, or parts of an octave). None: there is no value.

    Args:
        values: positive whole numbers, by kind.
        mark: a value that has to be an edge; 0: none.
        counts: how often each value occurs, by kind; None: once.
    """
    all_values = np.concatenate([np.zeros(0), *values.values()])
    if not len(all_values):
        return None
    low, high = (math.floor(math.log2(max(1.0, end))) for end in (all_values.min(), max(all_values.max(), mark)))
    per_octave = max(1, min(4, _MAX_BARS // (high + 1 - low)))
    steps = range((high + 1 - low) * per_octave + 1)
    edges = sorted(
        {float(round(2 ** (low + step / per_octave))) for step in steps} | ({float(mark)} if mark else set())
    )
    weights = counts or {}
    return Histogram(
        edges, {kind: np.histogram(some, edges, weights=weights.get(kind))[0].tolist() for kind, some in values.items()}
    )


def draw_histogram(shape: Histogram, x: str, y: str, mark: tuple[float, str] | None = None) -> Html:
    """Draw a bar for each range of values, as long as its count; ranges at both ends without a value are left out.

    Args:
        x, y: what the values are, as `tokens of a sample`, and what is counted, as `samples`.
        mark: an edge, and the words that stand between the bars below and above it.
    """
    sums = [sum(values[i] for values in shape.counts.values()) for i in range(len(shape.edges) - 1)]
    return tag("div", draw_colour_legend(shape.counts), *_bars(shape, sums, (x, y), mark), class_="histogram")


def _bars(
    shape: Histogram, sums: Sequence[int], axes: tuple[str, str], mark: tuple[float, str] | None
) -> Iterator[Html]:
    x, y = axes
    shown = [i for i, number in enumerate(sums) if number]
    for i, (low, high) in enumerate(pairwise(shape.edges)):
        if mark and low == mark[0]:
            yield tag("p", mark[1], class_="mark")
        if shown[0] <= i <= shown[-1]:
            pieces = [
                Piece(kind, values[i], f"{low:,.0f} to {high:,.0f} {x}, {kind}: {values[i]:,} {y}")
                for kind, values in shape.counts.items()
                if values[i]
            ]
            yield tag("span", f"{low:,.0f} – {high:,.0f}")
            yield draw_segmented_bar(pieces, max(sums), shows_padding=False)
            yield tag("span", short_number(sums[i]))
    if mark and mark[0] >= shape.edges[-1]:
        yield tag("p", mark[1], class_="mark")


def short_number(value: float) -> str:
    """Write a number in a few characters: 950, 12.3k, 4.1M."""
    if value != value or math.isinf(value):
        return str(value)
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size * (1 if unit == "k" else _ROUNDED_UP):
            size = 1e3 if unit == "k" else size
            return f"{value / size:.3g}{unit}"
    return f"{value:,.0f}" if value == round(value) or abs(value) >= 1000 else f"{value:.3g}"
