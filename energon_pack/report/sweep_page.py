"""Write the page of a sweep, its table on a terminal, and sweep.json."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from energon_pack.errors import amount
from energon_pack.report.pages.html import Html, clipped, join, page, section, table, tag
from energon_pack.report.pages.rows import Cell, Rows, print_table
from energon_pack.report.pages.svg import curves, dots, short
from energon_pack.report.sweep import BEST, Row, Sweep, sweep_of
from energon_pack.report.which_length import RULE
from energon_pack.run.console import say
from energon_pack.run.files import write_whole

_VALUE, _ERROR = 80, 400  # characters
_TIME = (
    "Time is estimated, and 1 is the shortest: FLOPs of a forward pass over all packs, by the sizes in the model's"
    " config.json (a backward pass takes twice as much again of each part): language model, weights × tokens and"
    " attention Σ len² of each member; vision encoder, by the visual tokens of each image or frame; times what ranks"
    " wait, where packing.topology is set. Not counted: padding, loading, communication, how well kernels use short"
    " or long rows."
)
#: columns: name, how their values are written, and the field; the most asked for come first
_COLUMNS: list[tuple[str, Callable[[Any], str], str]] = [
    ("fill", "{:.2%}".format, "fill"),
    ("tokens dropped", "{:.2%}".format, "dropped_tokens_share"),
    ("skipped", "{:,}".format, "dropped"),
    ("packs", "{:,}".format, "packs"),
    ("tokens", "{:,}".format, "tokens"),
    ("Σ len²", short, "attention_cost"),
    ("time of an epoch", "{:.3f}".format, "time"),
    ("of a token", "{:.3f}".format, "time_of_token"),
    ("MB", lambda num_bytes: f"{num_bytes / 1e6:,.1f}", "num_bytes"),
]


def end_sweep(folder: Path) -> None:
    """Write sweep.html and sweep.json, and print the table."""
    sweep = sweep_of(folder)
    if not sweep.rows and not sweep.failed:
        return
    write_whole(folder / "sweep.json", json.dumps(sweep.to_json(), indent=1).encode())
    write_whole(folder / "sweep.html", sweep_html(sweep, folder).encode())
    _print(sweep, folder)
    say(f"see it: {folder / 'sweep.html'}")


def sweep_html(sweep: Sweep, folder: Path) -> str:
    """Build the page.

    Args:
        folder: that the page will be in; links are relative to it.
    """
    best, names = sweep.best, _names(sweep.keys)
    done, failed = len(sweep.rows), len(sweep.failed)
    said = f"{amount(done, 'job')} done" + (f", {failed} failed" if failed else "")
    verdict = tag("p", f"No job is the best: {sweep.why_no_best}.", class_="verdict")
    if best:
        named = (
            ", ".join(f"{key}={clipped(value, _VALUE)}" for key, value in best.settings.items()) or f"job {best.number}"
        )
        verdict = tag("p", tag("b", "Best: "), tag("b", named, class_="good"), f" — {BEST}.", class_="verdict")
    return page(
        "Sweep · energon_pack",
        tag("h1", f"Sweep over {clipped(', '.join(names), 3 * _VALUE) or 'nothing'}"),
        tag("p", said, class_="faint"),
        verdict,
        _jobs(sweep, folder),
        over_keys(sweep),
        _failures(sweep, folder) if sweep.failed else None,
    )


def _jobs(sweep: Sweep, folder: Path) -> Html:
    same = (
        " = job 0: it came to the same figures as job 0." if any(row.same_as is not None for row in sweep.rows) else ""
    )
    notes = [tag("p", f"★ the best job; green: the best of a column, where one is alone.{same}", class_="faint")]
    if any(row.flops for row in sweep.rows):
        sources = sorted({row.cost_source for row in sweep.rows if row.cost_source})
        notes.append(tag("p", f"{_TIME} Counted by: {clipped('; '.join(sources), _ERROR)}.", class_="faint"))
    else:
        notes.append(tag("p", f"stage=lengths: each row has the length that is recommended: {RULE}.", class_="faint"))
    whole = _rows(sweep, folder).to_html() if sweep.rows else tag("p", "None.")
    return section("What did each job come to?", whole, *notes, name="jobs")


def _rows(sweep: Sweep, folder: Path) -> Rows:
    """Return a row for each job that succeeded; the best value of a column is green on a page."""
    columns, best, of_column = _columns(sweep), sweep.best, sweep.best_of()
    rows: list[list[str | Cell]] = []
    for row in sweep.rows:
        link, star = _link(str(row.number), row.page, folder), "★" * (row is best)
        cells: list[str | Cell] = [Cell(f"{row.number}{star}", join((link, star)))]
        cells += [clipped(row.settings[key], _VALUE) for key in sweep.keys]
        if row.same_as is not None:
            rows.append([*cells, f"= job {row.same_as}", *[""] * (len(columns) - 1)])
            continue
        for _, told, field in columns:
            value = getattr(row, field)
            text = "" if value is None else told(value)  # None: the stage of a job does not compute it
            is_best = of_column.get(field) == row.number
            cells.append(Cell(text, tag("b", text, class_="good")) if is_best else text)
        rows.append(cells)
    header = ["job", *_names(sweep.keys), *(name for name, _, _ in columns)]
    return Rows(header, rows, 1 + len(sweep.keys), {number for number, row in enumerate(sweep.rows) if row is best})


def _names(keys: Sequence[str]) -> list[str]:
    """Return the settings without their groups, where the short names differ."""
    names = [key.rpartition(".")[2] for key in keys]
    return names if len(set(names)) == len(keys) else list(keys)


def _columns(sweep: Sweep) -> list[tuple[str, Callable[[Any], str], str]]:
    """Return the columns in which some job has a value; the pack length only where it is no setting of the sweep."""
    columns = [column for column in _COLUMNS if any(getattr(row, column[2]) is not None for row in sweep.rows)]
    if "packing.max_token_len" not in sweep.keys:
        columns.insert(2, ("max_token_len", "{:,}".format, "max_token_len"))
    return columns


def _failures(sweep: Sweep, folder: Path) -> Html:
    rows = [
        [_link(str(job.number), job.page, folder), *(clipped(job.settings[key], _VALUE) for key in sweep.keys),
         clipped(job.error, _ERROR)]
        for job in sweep.failed
    ]  # fmt: skip
    made = table(["job", *_names(sweep.keys), "why"], rows, 2 + len(sweep.keys))
    return section("Which jobs came to nothing, and why?", made, name="failed")


def _link(text: str, target: str | None, folder: Path) -> Html | str:
    if target is None:
        return text
    return tag("a", text, href=quote(os.fsencode(os.path.relpath(target, folder))))


def _print(sweep: Sweep, folder: Path) -> None:
    if sweep.rows:
        print_table(_rows(sweep, folder))
        say(f"★: {BEST}" if sweep.best else f"no ★: {sweep.why_no_best}")
    for job in sweep.failed:
        say(f"job {job.number} failed: {job.error}")


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
