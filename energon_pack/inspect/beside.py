"""Compare two packed datasets: their figures, their settings, and the samples that only one of them has."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from energon_pack.dataset.files import at
from energon_pack.errors import PackError, amount
from energon_pack.inspect.dataset import Opened
from energon_pack.inspect.search import entries, ids_of
from energon_pack.report.pages.html import Html, page, section, tag
from energon_pack.report.pages.rows import Rows, code, print_table
from energon_pack.report.pages.svg import histogram, short
from energon_pack.report.shapes import linear_histogram
from energon_pack.run.console import say

_MOST_NAMED, _VALUE = 20, 80  # samples that are named, characters of a value
_COLUMNS = ("pack", "shard", "key", "record_part", "token_len")


@dataclass(frozen=True)
class Side:
    """A packed dataset, as far as it is compared."""

    name: str
    report: Mapping[str, Any]
    lens: npt.NDArray[np.int64]  # tokens of each pack
    ids: pa.ChunkedArray  # ids of the samples; a cut sample comes once for each part
    opened: Opened

    @property
    def fill(self) -> npt.NDArray[np.float64]:
        """Return how full each pack is, in percent."""
        most: int = at(self.report, "max_token_len") or self.lens.max(initial=1)
        return 100 * self.lens.astype(np.float64) / most


def side_of(opened: Opened) -> Side:
    """Read a dataset; raises PackError if it has no plan or no report."""
    if opened.plan is None or not opened.report:
        raise PackError(f"{opened.folder}: only what energon_pack packed can be compared: report.json and the plan")
    lens: list[npt.NDArray[np.int64]] = []
    ids: list[pa.Array] = []
    for table in opened.plan.tables(*_COLUMNS, *opened.plan.shared_columns()):
        packs = table["pack"].combine_chunks().dictionary_encode()
        own = table["token_len"].to_numpy()
        if "shared_len" in table.column_names:
            own = own - table["shared_len"].to_numpy()
        lens.append(np.bincount(packs.indices, own).astype(np.int64))
        ids.append(ids_of(table))
    return Side(
        opened.folder.name,
        opened.report,
        np.concatenate([np.zeros(0, np.int64), *lens]),
        pa.chunked_array(ids, pa.large_string()),
        opened,
    )


def figures(left: Side, right: Side) -> Rows:
    """Return the figures of both: the name, each value, and the difference."""
    rows = []
    for name, keys, form in _FIGURES:
        a, b = (at(side.report, *keys) for side in (left, right))
        if isinstance(a, (int, float)) and isinstance(b, (int, float)):
            is_share = form is _percent
            more = b - a if is_share or not a else b / a - 1
            told = "" if a == b or not (a or is_share) else f"{100 * more:+.2f} {'points' if is_share else '%'}"
            rows.append((name, form(a), form(b), told))
    return Rows(("", left.name, right.name, "second to first"), rows)


def _whole(value: float) -> str:
    return f"{value:,.0f}" if value < 1e12 else short(value)


def _percent(value: float) -> str:
    return f"{value:.2%}"


_FIGURES = (
    ("max_token_len", ("max_token_len",), _whole),
    ("samples that went in", ("samples_in",), _whole),
    ("packed", ("samples_packed",), _whole),
    ("skipped", ("samples_skipped",), _whole),
    ("tokens packed", ("tokens",), _whole),
    ("tokens left out", ("tokens_left_out",), _whole),
    ("tokens trained on", ("num_supervised",), _whole),
    ("packs", ("packs",), _whole),
    ("packs at least", ("packs_lower_bound",), _whole),
    ("fill", ("fill",), _percent),
    ("members of a pack, median", ("members_per_pack", "p50"), _whole),
    ("Σ len² of a pack, mean", ("attention_cost", "mean"), short),
    ("FLOPs of the weights", ("flops", "weights"), "{:.3g}".format),
    ("FLOPs of the attention", ("flops", "attention"), "{:.3g}".format),
    ("FLOPs of the vision encoder", ("flops", "vision"), "{:.3g}".format),
)


def settings(left: Side, right: Side) -> Rows:
    """Return the settings that differ, and the value in each dataset."""
    a, b = (_flat(at(side.report, "config") or {}) for side in (left, right))
    rows = [
        (key, _json(a.get(key)), _json(b.get(key))) for key in sorted(a.keys() | b.keys()) if a.get(key) != b.get(key)
    ]
    return Rows(("setting", left.name, right.name), rows, num_words=3)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)[:_VALUE]


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


@dataclass(frozen=True)
class Alone:
    """Samples that one dataset has packed and the other has not."""

    number: int
    first: list[tuple[str, str]]  # id, and why the other has not packed it


def only_in(side: Side, other: Side) -> Alone:
    """Return the samples of one that are not in the other; name some, with the reason in the other's ledger."""
    ids = pc.unique(side.ids.filter(pc.invert(pc.is_in(side.ids, other.ids))))
    first = ids.slice(0, _MOST_NAMED).to_pylist()
    told = _of(first, other)
    reasons = {str(entry["sample_id"]): f"{entry.get('reason')}: {entry.get('detail')}" for entry in told}
    return Alone(len(ids), [(name, reasons.get(name, "it is not in its ledger")) for name in first])


def _of(names: list[str], side: Side) -> Iterator[Mapping[str, Any]]:
    """Yield the ledger's entries about these samples."""
    wanted = set(names)
    yield from (entry for entry in entries(side.opened) if entry.get("sample_id") in wanted) if wanted else ()


def print_beside(left: Side, right: Side) -> None:
    """Print the figures, the settings that differ, and how many samples only one has."""
    for rows in (figures(left, right), settings(left, right)):
        print_table(rows)
        say("")
    for side, other in ((left, right), (right, left)):
        alone = only_in(side, other)
        say(f"only in {side.name}: {amount(alone.number, 'sample')}")
        for name, why in alone.first[:3]:
            say(f"  {name}: {why}")


def beside_page(left: Side, right: Side) -> str:
    """Show the same as a page, with how full the packs of each are."""
    differ = settings(left, right)
    return page(
        f"{left.name} beside {right.name}",
        tag("h1", f"{left.name} beside {right.name}"),
        tag("p", f"{left.opened.folder} · {right.opened.folder}", class_="faint"),
        section("What does each hold?", figures(left, right).to_html()),
        section("Which settings differ?", differ.to_html() if differ.rows else tag("p", "None.")),
        section("How full are their packs?", tag("div", *_fills(left, right), class_="pair")),
        section(
            "Which samples has only one of them?",
            *_alone(left, right, only_in(left, right)),
            *_alone(right, left, only_in(right, left)),
        ),
    )


def _fills(*sides: Side) -> list[Html]:
    shapes = [linear_histogram({"fill": side.fill}, most=100) for side in sides]
    return [
        tag(
            "div",
            tag("h3", side.name),
            histogram(shape.edges, shape.counts, "% of max_token_len", "packs", is_half=True),
        )
        for side, shape in zip(sides, shapes, strict=True)
        if shape
    ]


def _alone(side: Side, other: Side, alone: Alone) -> Sequence[Html]:
    title = tag("h3", f"Only in {side.name}: {alone.number:,}")
    if not alone.number:
        return [title]
    rows = [(code(name), why) for name, why in alone.first]
    return [title, Rows(("sample", f"what {other.name} says of it"), rows, 2).to_html()]
