"""Write the page of a sweep, its table on a terminal, and sweep.json."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from energon_pack.errors import amount
from energon_pack.report.advice import RULE
from energon_pack.report.pages.bars import make_bar_cell, short_number
from energon_pack.report.pages.html import (
    Cell,
    Html,
    Rows,
    clip_text,
    details,
    join,
    page,
    print_table,
    section,
    table,
    tag,
)
from energon_pack.report.sweep import BEST_RULE, Sweep, read_sweep
from energon_pack.run.console import say
from energon_pack.run.files import write_atomically

_MAX_VALUE_CHARS, _MAX_ERROR_CHARS = 80, 400  # characters
_TIME_EXPLAINED = (
    "Time is estimated, and 1 is the time of the job with the ★; without one, the shortest. It is the FLOPs of a"
    " forward pass over all packs, by the sizes in the model's config.json (a backward pass takes twice as much of"
    " each part): language model, weights × tokens, and attention by the squared length of each member; vision encoder,"
    " by the visual tokens of each image or frame; times what ranks wait, where packing.topology is set. Not counted:"
    " padding, loading, communication, how well kernels use short or long rows."
)
#: columns: name, how their values are written, and the field; the most asked for come first
_COLUMNS: list[tuple[str, Callable[[Any], str], str]] = [
    ("fill", "{:.2%}".format, "fill"),
    ("tokens dropped", "{:.2%}".format, "dropped_tokens_share"),
    ("skipped", "{:,}".format, "dropped"),
    ("packs", "{:,}".format, "packs"),
    ("tokens", "{:,}".format, "tokens"),
    ("cost of attention", short_number, "attention_cost"),
    ("time of an epoch", "{:.3f}".format, "time"),
    ("of a token", "{:.3f}".format, "time_of_token"),
    ("MB", lambda num_bytes: f"{num_bytes / 1e6:,.1f}", "num_bytes"),
]


def write_sweep_page_and_json(folder: Path) -> None:
    """Write sweep.html and sweep.json to the folder of a sweep, and print its table; nothing if no job has ended."""
    sweep = read_sweep(folder)
    if not sweep.rows and not sweep.failed:
        return
    write_atomically(folder / "sweep.json", json.dumps(sweep.to_json(), indent=1).encode())
    write_atomically(folder / "sweep.html", sweep_html(sweep, folder).encode())
    _print_table(sweep, folder)
    say(f"see it: {folder / 'sweep.html'}")


def sweep_html(sweep: Sweep, folder: Path) -> str:
    """Build the page of a sweep as one HTML document; links in it are relative to `folder`."""
    best, names = sweep.best, _names(sweep.keys)
    num_refused = sum(row.refused is not None for row in sweep.rows)
    others = {"refused": num_refused, "failed": len(sweep.failed)}
    said = [f"{amount(len(sweep.rows) - num_refused, 'job')} done", *(f"{n} {what}" for what, n in others.items() if n)]
    verdict = tag("p", f"No job is the best: {sweep.why_no_best}.", class_="verdict")
    if best:
        named = ", ".join(f"{key}={_value(value)}" for key, value in best.settings.items()) or f"job {best.number}"
        does = f": it drops {best.dropped_tokens_share:.2%} of the tokens and fills {best.fill:.2%} of its packs."
        verdict = tag("p", tag("b", "Best: "), tag("b", named, class_="good"), does, class_="verdict")
    return page(
        "Sweep · energon_pack",
        tag("h1", f"Sweep over {clip_text(', '.join(names), 3 * _MAX_VALUE_CHARS) or 'nothing'}"),
        tag("p", ", ".join(said), class_="faint"),
        verdict,
        _jobs(sweep, folder),
        _failures(sweep, folder) if sweep.failed else None,
    )


def _jobs(sweep: Sweep, folder: Path) -> Html:
    grey = "Grey: it would not be published. " * any(row.refused for row in sweep.rows)
    sources = sorted({row.cost_source for row in sweep.rows if row.cost_source})
    by = None
    if any(row.time for row in sweep.rows):
        how, by = "", f"{_TIME_EXPLAINED} Counted by: {clip_text('; '.join(sources), _MAX_ERROR_CHARS)}."
    elif not sources:
        how = f"stage=lengths: each row has the length that is recommended: {RULE}."
    else:
        how = "No time: that would be the sizes of the models, not of the data."
    whole = _rows(sweep, folder).to_html() if sweep.rows else tag("p", "None.")
    star = f"★: {BEST_RULE}. " * (sweep.best is not None)
    says = tag("p", f"Bars: the share of the most in a column. {grey}{star}{how}", class_="faint")
    return section("Jobs", whole, says, details("How time is estimated", tag("p", by, class_="faint")) if by else None)


def _rows(sweep: Sweep, folder: Path) -> Rows:
    """Return a table with a row for each job that has figures, and a bar behind each number."""
    columns, best = _columns(sweep), sweep.best
    most = {field: max((getattr(row, field) or 0 for row in sweep.rows), default=0) or 1 for _, _, field in columns}
    has_why = any(row.refused for row in sweep.rows)
    rows: list[list[str | Cell]] = []
    for row in sweep.rows:
        link, star = _link(str(row.number), row.page, folder), "★" * (row is best)
        cells: list[str | Cell] = [Cell(f"{row.number}{star}", join((link, star)))]
        cells += [_value(row.settings[key]) for key in sweep.keys]
        cells += [_source_of_model_sizes(row.cost_source or "")] * sweep.has_several_models
        cells += [(row.refused or "").partition(",")[0]] * has_why
        for _, told, field in columns:
            value = getattr(row, field)  # None: the stage of a job does not compute it
            cells.append("" if value is None else make_bar_cell(told(value), value / most[field]))
        rows.append(cells)
    words = ["job", *_names(sweep.keys), *["sizes"] * sweep.has_several_models, *["refused"] * has_why]
    strong = {number for number, row in enumerate(sweep.rows) if row is best}
    faint = {number for number, row in enumerate(sweep.rows) if row.refused}
    return Rows([*words, *(name for name, _, _ in columns)], rows, len(words), strong, faint)


def _value(text: str) -> str:
    """Return a setting's value as it is shown; of a path its last name."""
    return clip_text(text.strip("'\"").rstrip("/").rpartition("/")[2] if "/" in text else text, _MAX_VALUE_CHARS)


def _source_of_model_sizes(source: str) -> str:
    """Say where the sizes of a model come from: its config.json, or what is assumed."""
    _, is_assumed, sizes = source.partition(": ")
    return f"assumed: {sizes.partition(' and ')[0]}" if is_assumed else clip_text(source, _MAX_VALUE_CHARS)


def _names(keys: Sequence[str]) -> list[str]:
    """Return the settings without their groups, where the short names differ."""
    names = [key.rpartition(".")[2] for key in keys]
    return names if len(set(names)) == len(keys) else list(keys)


def _columns(sweep: Sweep) -> list[tuple[str, Callable[[Any], str], str]]:
    """Return the columns in which some job has a value; the pack length only where it is no setting of the sweep."""
    columns = [column for column in _COLUMNS if any(getattr(row, column[2]) is not None for row in sweep.rows)]
    if sweep.has_several_models:  # their costs are not of the data
        columns = [column for column in columns if column[2] not in ("attention_cost", "num_bytes")]
    if "packing.max_token_len" not in sweep.keys:
        columns.insert(2, ("max_token_len", "{:,}".format, "max_token_len"))
    return columns


def _failures(sweep: Sweep, folder: Path) -> Html:
    rows = [
        [_link(str(job.number), job.page, folder), *(_value(job.settings[key]) for key in sweep.keys),
         clip_text(job.error, _MAX_ERROR_CHARS)]
        for job in sweep.failed
    ]  # fmt: skip
    return section("Failed", table(["job", *_names(sweep.keys), "why"], rows, 2 + len(sweep.keys)))


def _link(text: str, target: str | None, folder: Path) -> Html | str:
    if target is None:
        return text
    return tag("a", text, href=quote(os.fsencode(os.path.relpath(target, folder))))


def _print_table(sweep: Sweep, folder: Path) -> None:
    if sweep.rows:
        print_table(_rows(sweep, folder))
        say(f"★: {BEST_RULE}" if sweep.best else f"no ★: {sweep.why_no_best}")
    for job in sweep.failed:
        say(f"job {job.number} failed: {job.error}")
