"""Charts as inline SVG: a few kB each, in the colours of the page, with a tooltip on each thing that is drawn.

Colours go by kinds, the classes `of-<kind>` of style.css: text, image, video, mix, unknown, padding.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from energon_pack.pages.html import Html, join, tag

_WIDTH = 720
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 28, 34
_TICKS = 5  # about so many on an axis
_ROUNDED_UP = 0.9995  # of a unit: in three digits it is one


class Mark(NamedTuple):
    """A line across a chart."""

    at: float  # in units of its axis
    label: str


class Piece(NamedTuple):
    """A stretch of a strip."""

    kind: str
    size: float
    label: str  # its tooltip
    is_odd: bool = False  # drawn paler: what stands beside it, of the same kind, is told apart


def histogram(
    edges: Sequence[float],
    counts: Mapping[str, Sequence[float]],
    x: str,
    y: str,
    marks: Sequence[Mark] = (),
    height: int = 220,
    width: int = _WIDTH,
    labelled: Sequence[int] | None = None,
) -> Html:
    """Bars side by side, of each kind on top of the one before.

    Args:
        edges: of the bars, ascending; the bars are equally wide, whatever their edges.
        counts: by kind, one for each bar.
        x, y: what the axes show.
        marks: vertical lines, in units of `edges`.
        width: of the whole; in a column half as wide half of it, so that letters stay as large.
        labelled: numbers of the edges with a label; None: as many as there is room for, evenly.
    """
    num, inner = len(edges) - 1, width - _LEFT - _RIGHT
    sums = [sum(values[i] for values in counts.values()) for i in range(num)]
    scale, drawn = _Up(max([*sums, 1e-9]), height, width, least_step=1.0), []  # counts are whole
    step = inner / num
    for i in range(num):
        base = 0.0
        for kind, values in counts.items():
            if values[i]:
                tip = f"{short(edges[i])} to {short(edges[i + 1])} {x}, {kind}: {short(values[i])} {y}"
                top = scale(base + values[i])
                drawn.append(_rect(_LEFT + i * step + 0.5, top, step - 1, scale(base) - top, kind, tip))
                base += values[i]
    every = max(1, math.ceil(num * 70 / inner))
    labels = [(_LEFT + i * step, short(edges[i])) for i in range(0, num + 1, every)]
    if labelled is not None:
        labels = [(_LEFT + i * step, _whole(edges[i])) for i in labelled]
    lines = [_mark(_LEFT + _between(edges, mark.at) * step, mark.label, height, width) for mark in marks]
    whole = (*scale.axis(y), *_below(labels, x, height, width), *drawn, *lines)
    return join((legend(counts), _chart(height, width, f"{y} by {x}", *whole)))


def curves(
    points: Mapping[str, Sequence[tuple[float, float]]],
    x: str,
    y: str,
    marks: Sequence[Mark] = (),
    height: int = 220,
    from_zero: bool = True,
    is_log: bool = False,
) -> Html:
    """Lines over a common axis, one for each kind.

    Args:
        points: by kind, ascending in x.
        marks: vertical lines.
        from_zero: the axis of y begins there; False: with the least.
        is_log: octaves of x are equally wide, and each x of a point is labelled.
    """
    every = [point for some in points.values() for point in some]
    place = math.log2 if is_log else float
    at_points = sorted({p[0] for p in every})
    first, last = place(at_points[0]), place(at_points[-1])
    values = [p[1] for p in every]
    scale = _Up(max([*values, 1e-9]), height, _WIDTH, 0.0 if from_zero else min(values))
    span, inner = (last - first) or 1.0, _WIDTH - _LEFT - _RIGHT

    def across(value: float) -> float:
        return _LEFT + (place(value) - first) / span * inner

    drawn = []
    for kind, some in points.items():
        line = " ".join(f"{across(a):.1f},{scale(b):.1f}" for a, b in some)
        drawn.append(tag("polyline", points=line, class_=f"curve of-{kind}"))
        for a, b in some if len(some) <= 64 else ():  # of each point a tooltip
            drawn.append(_rect(across(a) - 3, scale(b) - 3, 6, 6, kind, f"{short(a)} {x}, {kind}: {short(b)} {y}"))
    ticks = (
        [(across(at), _whole(at)) for at in at_points]
        if is_log
        else [(across(at), short(at)) for at in _ticks(first, last) if first <= at <= last]
    )
    inside = [mark for mark in marks if at_points[0] <= mark.at <= at_points[-1]]
    lines = [_mark(across(mark.at), mark.label, height, _WIDTH) for mark in inside]
    whole = (*scale.axis(y), *_below(ticks, x, height, _WIDTH), *drawn, *lines)
    return join((legend(points), _chart(height, _WIDTH, f"{y} by {x}", *whole)))


def strip(pieces: Sequence[Piece], total: float, height: int = 18) -> Html:
    """One bar from end to end: what a pack is filled with; the rest is padding."""
    drawn, at = [], 0.0
    used = sum(piece.size for piece in pieces)
    rest = [Piece("padding", total - used, f"padding: {short(total - used)}")] if total > used else []
    for kind, size, label, is_odd in (*pieces, *rest):
        width = size / total * _WIDTH
        drawn.append(_rect(at, 0, max(0.5, width - 0.6), height, f"{kind} odd" if is_odd else kind, label))
        at += width
    sums: dict[str, float] = {}
    for piece in (*pieces, *rest):
        sums[piece.kind] = sums.get(piece.kind, 0.0) + piece.size
    inner = tag("svg", *drawn, viewBox=f"0 0 {_WIDTH} {height}", preserveAspectRatio="none", role="img",
                aria_label=", ".join(f"{kind} {short(size)}" for kind, size in sums.items()),
                style=f"height:{height}px")  # fmt: skip
    return tag("div", inner, class_="chart strip")


def legend(kinds: Mapping[str, object]) -> Html | None:
    """Which colour is what; nothing, where there is one."""
    if len(kinds) < 2:
        return None
    return tag("div", *(tag("span", tag("i", class_=f"of-{kind}"), kind) for kind in kinds), class_="legend")


def short(value: float) -> str:
    """A number in a few characters: 950, 12.3k, 4.1M."""
    if value != value or math.isinf(value):
        return str(value)
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size * (1 if unit == "k" else _ROUNDED_UP):
            size = 1e3 if unit == "k" else size
            return f"{value / size:.3g}{unit}"
    return f"{value:,.0f}" if value == round(value) or abs(value) >= 1000 else f"{value:.3g}"


def _whole(value: float) -> str:
    """A size that is known by all its digits, as 16,384."""
    return f"{value:,.0f}" if value < 1e5 else short(value)


class _Up:
    """From values to heights."""

    def __init__(self, most: float, height: int, width: int, least: float = 0.0, least_step: float = 0.0):
        ticks = _ticks(least, most, least_step)
        self._ticks, self._height, self._right = ticks, height - _TOP - _BOTTOM, width - _RIGHT
        self._least, self._most = min(least, ticks[0]), max(most, ticks[-1])

    def __call__(self, value: float) -> float:
        share = (value - self._least) / ((self._most - self._least) or 1.0)
        return _TOP + self._height * (1 - share)

    def axis(self, label: str) -> list[Html]:
        lines = []
        for at in self._ticks:
            up = self(at)
            lines.append(tag("line", x1=_LEFT, x2=self._right, y1=f"{up:.1f}", y2=f"{up:.1f}", class_="axis"))
            lines.append(_text(_LEFT - 6, up + 4, short(at), "end"))
        return [*lines, _text(4, 11, label, "start")]


def _ticks(least: float, most: float, least_step: float = 0.0) -> list[float]:
    """Round values that span a range."""
    span = (most - least) or abs(most) or 1.0
    power = 10.0 ** math.floor(math.log10(span / _TICKS))
    step = next(power * by for by in (1, 2, 2.5, 5, 10) if span / (power * by) <= _TICKS + 0.5)
    step = max(step, least_step)
    first = math.floor(least / step + 1e-9)
    return [round(i * step, 12) for i in range(first, math.ceil(most / step - 1e-9) + 1)]


def _between(edges: Sequence[float], value: float) -> float:
    """Where a value is, counted in bars."""
    for i, (low, high) in enumerate(pairwise(edges)):
        if value < high:
            return i + max(0.0, value - low) / (high - low)
    return float(len(edges) - 1)


def _below(labels: Sequence[tuple[float, str]], x: str, height: int, width: int) -> list[Html]:
    right = width - _RIGHT
    texts = [
        _text(min(at, right + 8), height - _BOTTOM + 15, label, "end" if at > right - 12 else "middle")
        for at, label in labels
        if at <= right + 1
    ]
    return [*texts, _text(right, height - 4, x, "end")]


def _mark(at: float, label: str, height: int, width: int) -> Html:
    line = tag("line", x1=f"{at:.1f}", x2=f"{at:.1f}", y1=_TOP, y2=height - _BOTTOM, class_="mark")
    side = "end" if at > width / 2 else "start"
    return join((line, _text(at + (-5 if side == "end" else 5), _TOP - 5, label, side)))


def _rect(x: float, y: float, width: float, height: float, kind: str, tip: str) -> Html:
    place = {"x": f"{x:.1f}", "y": f"{y:.1f}", "width": f"{width:.1f}", "height": f"{max(height, 0.6):.1f}"}
    return tag("rect", tag("title", tip), **place, class_=f"of-{kind}")


def _text(x: float, y: float, text: str, anchor: str) -> Html:
    return tag("text", text, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor)


def _chart(height: int, width: int, label: str, *drawn: Html) -> Html:
    inner = tag("svg", *drawn, viewBox=f"0 0 {width} {height}", role="img", aria_label=f"Chart: {label}",
                style=f"min-width:{width * 5 // 8}px")  # fmt: skip
    return tag("div", inner, class_="chart")
