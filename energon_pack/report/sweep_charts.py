"""Draw the chart of a sweep: curves over one number, one small chart for each value of another setting; else dots."""

from collections.abc import Sequence

from energon_pack.pages.html import Html, clipped, section, tag
from energon_pack.pages.svg import curves, dots
from energon_pack.report.sweep import Row, Sweep

_MOST_CHARTS, _MOST_DOTS = 12, 60
_NAME = 60  # characters
_BOTH = "% filled, % of tokens dropped"


def over_keys(sweep: Sweep) -> Html | None:
    """Draw the results over the settings of a sweep; None: there are fewer than two jobs to compare."""
    rows = [row for row in sweep.rows if row.packs]
    if len(rows) < 2 or not sweep.keys:
        return None
    numbers = [key for key in sweep.keys if _is_number(rows, key)]
    others = [key for key in sweep.keys if key not in numbers[:1]]
    is_drawn_over = bool(numbers) and len(others) < 2
    made = _curves(rows, numbers[0], others) if is_drawn_over else [_dots(rows, sweep.keys)]
    title = f"What {'does' if len(sweep.keys) == 1 else 'do'} {' and '.join(sweep.keys)} change?"
    return section(clipped(title, 3 * _NAME), *made, name="over the sweep")


def _is_number(rows: Sequence[Row], key: str) -> bool:
    try:
        return len({float(row.settings[key]) for row in rows}) > 1
    except ValueError:
        return False


def _curves(rows: Sequence[Row], key: str, others: Sequence[str]) -> list[Html]:
    """Draw curves over a number: one chart for each value of the other setting, all with the same axes."""
    if not others:
        return [_curve(rows, key, is_half=False)]
    (other,) = others
    values = list(dict.fromkeys(row.settings[other] for row in rows))
    charts = [
        tag("div", tag("h3", clipped(f"{other}={value}", _NAME)), _curve(some, key, is_half=True))
        for value in values[:_MOST_CHARTS]
        if (some := [row for row in rows if row.settings[other] == value])
    ]
    more = len(values) - len(charts)
    rest = [tag("p", f"and {more:,} more values of {other}", class_="faint")] * (more > 0)
    return [tag("div", *charts, class_="pair"), *rest]


def _curve(rows: Sequence[Row], key: str, is_half: bool) -> Html:
    at = sorted(((float(row.settings[key]), row) for row in rows), key=lambda pair: pair[0])
    drawn = {"fill": [(x, 100 * row.fill) for x, row in at],
             "dropped": [(x, 100 * row.dropped_tokens_share) for x, row in at]}  # fmt: skip
    return curves(drawn, key, _BOTH, is_log=at[0][0] > 0, most=100, is_half=is_half)


def _dots(rows: Sequence[Row], keys: Sequence[str]) -> Html:
    """Draw one line for each job: how full its packs are, and which share of the tokens is dropped."""
    lines = [
        (clipped(", ".join(row.settings[key] for key in keys), _NAME),
         {"fill": 100 * row.fill, "dropped": 100 * row.dropped_tokens_share})
        for row in rows[:_MOST_DOTS]
    ]  # fmt: skip
    return dots(lines, _BOTH, 100)
