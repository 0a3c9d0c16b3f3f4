"""Draw charts as inline SVG: a few kB each, in the colours of the page, with a tooltip on each drawn thing.

    ┌ .chart ─────────────────────────┐
    │ legend, name of the upper axis  │   letters are HTML: as large on a telephone as on a desk,
    │ 100 ┌ .plot ──────────────────┐ │   whatever the width of what is drawn
    │  50 │  SVG, drawn to its width │ │
    │   0 └─────────────────────────┘ │
    │     0        50       100       │   labels that would lie over each other are left out,
    │            name of the lower axis│   more of them where the page is narrow
    └─────────────────────────────────┘

Colours follow kinds, the classes `of-<kind>` of style.css: text, image, video, audio, mix, unknown, padding …
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from energon_pack.report.pages.html import Html, tag

SIDE = 1000.0  # width and height of a drawing in its own units; it is stretched to its place
_LEAST = 4.0  # the least height of a bar, so that it is seen
_TICKS = 5  # about so many labels on an axis
_ROUNDED_UP = 0.9995  # share of a unit; in three digits it is written as one
_CHAR, _GAP = 6.6, 10.0  # pixels: the widest letter of a label, and the gap between two labels
_WIDE, _NARROW = 800.0, 330.0  # the least width of a plot in pixels: on a page, and in half of a page or on a telephone
_MARK_ROW = 17  # pixels of a row of labels of marks


class Mark(NamedTuple):
    """A line across a chart, with its label."""

    at: float  # its place, in units of its axis
    label: str


class Piece(NamedTuple):
    """A piece of a strip."""

    kind: str
    size: float
    label: str  # its tooltip
    is_odd: bool = False  # drawn paler, to tell it from a neighbour of the same kind


class _Tick(NamedTuple):
    """A label of an axis."""

    at: float  # its place on the axis, from 0 to 1
    label: str


def histogram(
    edges: Sequence[float],
    counts: Mapping[str, Sequence[float]],
    x: str,
    y: str,
    marks: Sequence[Mark] = (),
    height: int = 160,
    labelled: Sequence[int] | None = None,
    is_half: bool = False,
    is_percent: bool = False,
) -> Html:
    """Draw bars side by side; the bars of each kind stand on top of the bars of the kind before.

    Args:
        edges: of the bars, ascending; bars are equally wide on the page, whatever their edges.
        counts: by kind, one count for each bar.
        x, y: what the axes show.
        marks: vertical lines, in units of `edges`.
        height: of the drawing, in pixels.
        labelled: indexes of the edges that get a label; None: all that fit.
        is_half: the chart stands in a column half as wide as the page.
        is_percent: edges go from 0 to 100.
    """
    num = len(edges) - 1
    sums = [sum(values[i] for values in counts.values()) for i in range(num)]
    scale, drawn = _Scale(0.0, max([*sums, 1e-9]), least_step=1.0), []  # counts are whole numbers
    step = SIDE / num
    for i in range(num):
        base = 0.0
        for kind, values in counts.items():
            if values[i]:
                tip = f"{short(edges[i])} to {short(edges[i + 1])} {x}, {kind}: {short(values[i])} {y}"
                top = scale.y(base + values[i])
                drawn.append(_rect(i * step, top, step, scale.y(base) - top, kind, tip))
                base += values[i]
    if is_percent:
        below = [_Tick(at / 100, str(at)) for at in (0, 25, 50, 75, 100)]
    elif labelled is not None:
        below = [_Tick(i / num, _whole(edges[i])) for i in labelled]
    else:
        below = [_Tick(i / num, short(edge)) for i, edge in enumerate(edges)]
    at = [_Tick(_between(edges, mark.at) / num, mark.label) for mark in marks]
    return _chart(legend(counts), x, y, drawn, scale.ticks(), below, at, height, is_half)


def curves(
    points: Mapping[str, Sequence[tuple[float, float]]],
    x: str,
    y: str,
    marks: Sequence[Mark] = (),
    height: int = 160,
    is_log: bool = False,
    is_percent: bool = False,
    most: float = 0.0,
    is_half: bool = False,
) -> Html:
    """Draw lines over a common axis, one for each kind.

    Args:
        points: by kind, ascending in x.
        marks: vertical lines; those outside the axis are left out.
        height: of the drawing, in pixels.
        is_log: octaves of x are equally wide, and the x of each point is labelled, those with a mark first.
        is_percent: x goes from 0 to 100.
        most: a value that the y axis reaches at least.
        is_half: the chart stands in a column half as wide as the page.
    """
    every = [point for some in points.values() for point in some]
    place = math.log2 if is_log else float
    at_points = [0.0, 100.0] if is_percent else sorted({p[0] for p in every})
    first, last = place(at_points[0]), place(at_points[-1])
    scale = _Scale(0.0, max([*(p[1] for p in every), most, 1e-9]))
    span = (last - first) or 1.0

    def across(value: float) -> float:
        return (place(value) - first) / span

    drawn = []
    for kind, some in points.items():
        line = " ".join(f"{SIDE * across(a):.1f},{scale.y(b):.1f}" for a, b in some)
        drawn.append(tag("polyline", points=line, class_=f"curve of-{kind}"))
        for a, b in some if len(some) <= 64 else ():  # each point gets a tooltip, unless there are many
            tip = tag("title", f"{short(a)} {x}, {kind}: {short(b)} {y}")
            place_ = f"M{SIDE * across(a):.1f} {scale.y(b):.1f}h0"
            drawn.append(tag("path", tip, d=place_, class_=f"point of-{kind}"))
    inside = [_Tick(across(mark.at), mark.label) for mark in marks if at_points[0] <= mark.at <= at_points[-1]]
    if is_percent:
        below = [_Tick(at / 100, str(at)) for at in (0, 25, 50, 75, 100)]
    elif is_log:
        marked = {mark.at for mark in marks}
        below = [_Tick(across(at), _whole(at)) for at in sorted(at_points, key=lambda at: at not in marked)]
    else:
        below = [_Tick(across(at), short(at)) for at in _ticks(first, last) if first <= at <= last]
    return _chart(legend(points), x, y, drawn, scale.ticks(), below, inside, height, is_half)


def dots(lines: Sequence[tuple[str, Mapping[str, float]]], x: str, most: float) -> Html:
    """Draw a line for each named thing, with a dot for each kind of value.

    Args:
        x: name of the axis of values, from 0 to `most`.
    """
    rows = []
    for name, values in lines:
        drawn = [tag("path", d=f"M0 {SIDE / 2:.0f}h{SIDE:.0f}", class_="axis")]
        for kind, value in values.items():
            tip = tag("title", f"{name}, {kind}: {short(value)} {x}")
            drawn.append(tag("path", tip, d=f"M{SIDE * value / most:.1f} {SIDE / 2:.0f}h0", class_=f"point of-{kind}"))
        rows += [tag("span", name), _svg(drawn, f"Chart: {name}", 18)]
    ends = tag("div", *(tag("span", short(at)) for at in (0, most / 2, most)), class_="ends")
    plot = tag("div", *rows, tag("span"), ends, class_="dots")
    return tag("div", legend(lines[0][1]), plot, tag("div", x, class_="name x"), class_="chart")


def strip(pieces: Sequence[Piece], total: float, height: int = 18) -> Html:
    """Draw one bar from end to end: the pieces of a pack; the rest is padding."""
    drawn, at = [], 0.0
    used = sum(piece.size for piece in pieces)
    rest = [Piece("padding", total - used, f"padding: {short(total - used)}")] if total > used else []
    for kind, size, label, is_odd in (*pieces, *rest):
        width = size / total * SIDE
        drawn.append(_rect(at, 0, max(0.5, width - 0.6), SIDE, f"{kind} odd" if is_odd else kind, label))
        at += width
    sums: dict[str, float] = {}
    for piece in (*pieces, *rest):
        sums[piece.kind] = sums.get(piece.kind, 0.0) + piece.size
    inner = _svg(drawn, ", ".join(f"{kind} {short(size)}" for kind, size in sums.items()), height)
    return tag("div", inner, class_="strip")


def legend(kinds: Mapping[str, object]) -> Html | None:
    """Say which colour stands for which kind; None where there is only one."""
    if len(kinds) < 2:
        return None
    return tag("div", *(tag("span", tag("i", class_=f"of-{kind}"), kind) for kind in kinds), class_="legend")


def short(value: float) -> str:
    """Write a number in a few characters: 950, 12.3k, 4.1M."""
    if value != value or math.isinf(value):
        return str(value)
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size * (1 if unit == "k" else _ROUNDED_UP):
            size = 1e3 if unit == "k" else size
            return f"{value / size:.3g}{unit}"
    return f"{value:,.0f}" if value == round(value) or abs(value) >= 1000 else f"{value:.3g}"


def _whole(value: float) -> str:
    """Write a size with all its digits, as 16,384."""
    return f"{value:,.0f}" if value < 1e5 and value == round(value) else short(value)


class _Scale:
    """Maps values to heights."""

    def __init__(self, least: float, most: float, least_step: float = 0.0):
        self._ticks = _ticks(least, most, least_step)
        self._least, self._most = min(least, self._ticks[0]), max(most, self._ticks[-1])

    def share(self, value: float) -> float:
        return (value - self._least) / ((self._most - self._least) or 1.0)

    def y(self, value: float) -> float:
        return SIDE * (1 - self.share(value))

    def ticks(self) -> list[_Tick]:
        return [_Tick(self.share(at), short(at)) for at in self._ticks]


def _ticks(least: float, most: float, least_step: float = 0.0) -> list[float]:
    """Return round values that span a range."""
    span = max((most - least) or abs(most) or 1.0, 1e-300)  # a smaller span can't be cut into tenths
    power = 10.0 ** math.floor(math.log10(span / _TICKS))
    step = next(power * by for by in (1, 2, 2.5, 5, 10) if span / (power * by) <= _TICKS + 0.5)
    step = max(step, least_step)
    first = math.floor(least / step + 1e-9)
    return [round(i * step, 12) for i in range(first, math.ceil(most / step - 1e-9) + 1)]


def _between(edges: Sequence[float], value: float) -> float:
    """Return the place of a value, counted in bars."""
    for i, (low, high) in enumerate(pairwise(edges)):
        if value < high:
            return i + max(0.0, value - low) / (high - low)
    return float(len(edges) - 1)


def _fitting(labels: Sequence[_Tick], width: float) -> set[int]:
    """Return the indexes of labels that fit side by side into `width` pixels; earlier labels are taken first.

    If labels are evenly spaced, every second, third … is taken.
    """
    longest = max((len(label.label) for label in labels), default=0) * _CHAR + _GAP
    places = [label.at for label in labels]
    steps = [b - a for a, b in pairwise(places)]
    every = 1
    if steps and max(steps) - min(steps) < 1e-6 < steps[0]:
        every = max(1, math.ceil(longest / (steps[0] * width)))
    taken: list[tuple[float, float]] = []
    numbers = set()
    for number in range(0, len(labels), every):
        at, half = places[number] * width, (len(labels[number].label) * _CHAR + _GAP) / 2
        if all(at + half <= low or at - half >= high for low, high in taken):
            taken.append((at - half, at + half))
            numbers.add(number)
    return numbers


def _chart(
    colours: Html | None, x: str, y: str, drawn: Sequence[Html], left: Sequence[_Tick], below: Sequence[_Tick],
    marks: Sequence[_Tick], height: int, is_half: bool,
) -> Html:  # fmt: skip
    lines = [tag("path", d=f"M0 {SIDE * (1 - tick.at):.1f}h{SIDE:.0f}", class_="axis") for tick in left]
    lines += drawn
    lines += [tag("path", d=f"M{SIDE * mark.at:.1f} 0v{SIDE:.0f}", class_="mark") for mark in marks]
    texts = [tag("span", tick.label, class_="up", style=f"bottom:{100 * tick.at:.1f}%") for tick in left]
    wide, narrow = _fitting(below, _NARROW if is_half else _WIDE), _fitting(below, _NARROW)
    for number, tick in enumerate(below):
        if number in wide | narrow:
            where = None if number in wide & narrow else "wide" if number in wide else "narrow"
            texts.append(_at(tick, f"under {where}" if where else "under"))
    for row, mark in enumerate(marks, -len(marks)):
        texts.append(_at(mark, "beside before" if mark.at > 0.5 else "beside", f";top:{_MARK_ROW * row}px"))
    plot = tag("div", _svg(lines, f"Chart: {y} by {x}", height), *texts, class_="plot",
               style=f"margin-top:{_MARK_ROW * len(marks) + 8}px")  # fmt: skip
    return tag("div", colours, tag("div", y, class_="name"), plot, tag("div", x, class_="name x"), class_="chart")


def _at(tick: _Tick, class_: str, more: str = "") -> Html:
    return tag("span", tick.label, class_=class_, style=f"left:{100 * tick.at:.1f}%{more}")


def _rect(x: float, y: float, width: float, height: float, kind: str, tip: str) -> Html:
    place = {"x": f"{x:.1f}", "y": f"{y:.1f}", "width": f"{width:.1f}", "height": f"{max(height, _LEAST):.1f}"}
    return tag("rect", tag("title", tip), **place, class_=f"of-{kind}")


def _svg(drawn: Sequence[Html], label: str, height: int) -> Html:
    """Return the drawing, as wide as its place and `height` pixels high."""
    return tag("svg", *drawn, viewBox=f"0 0 {SIDE:.0f} {SIDE:.0f}", preserveAspectRatio="none", role="img",
               aria_label=label, style=f"height:{height}px")  # fmt: skip
