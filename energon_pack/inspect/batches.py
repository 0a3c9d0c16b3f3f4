"""Show a batch: positions, where members begin, and what each key holds."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, pairwise
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from energon_pack.report.pages.html import Html, details, join, table, tag
from energon_pack.samples.media.kinds import KINDS
from energon_pack.training.batch import PackedBatch
from energon_pack.training.layout import IGNORE

_MOST_ROWS = 64  # rows of a table of boundaries
_FIRST = 8  # values of a tensor that are shown
_KINDS = ("text", *KINDS)  # by the values of mm_token_type_ids
_ROWS = ("text", "time", "height", "width")
_WAYS = {
    "positions": "by positions that start again; kernels of variable length get cu_seqlens",
    "dict4d": "by masks made from position_ids",
    "prefix4d": "by a mask in which all before the answer is seen in both directions",
    "hybrid": "by seq_idx and positions that start again",
    "indexed": "by an attention_mask that numbers the members",
    "auto": "by what is found for the model",
}


def batch_section(batch: PackedBatch) -> Html:
    """Show positions, boundaries, masks and keys of a batch of one pack."""
    bounds = boundaries(batch)
    ways = "by masks, or a plan, made from tree_end" if "tree_end" in batch else _WAYS.get(batch.mask, batch.mask)
    return join(
        (
            tag("h3", "Positions"),
            positions_table(batch),
            tag("h3", "Where members begin"),
            bounds_table(bounds, batch),
            tag("p", f"Members are kept apart {ways}.", class_="faint"),
            *weights_section(batch),
            tag("h3", "Keys of the batch"),
            keys_table(batch),
        )
    )


def boundaries(batch: PackedBatch) -> list[int]:
    """Return where each member begins in the row, and where the last one ends."""
    names = ("cu_seqlens_q_padded", "cu_seqlens_q", "cu_seq_lens_q")
    found: list[int] = next(batch[name].tolist() for name in names if name in batch)
    return found


def positions_table(batch: PackedBatch) -> Html:
    """Show the rows of positions as runs of tokens of one kind."""
    positions = batch["position_ids"]
    rows = positions.reshape(-1, positions.shape[-1])
    named = dict(zip(["text"] if len(rows) == 1 else _ROWS[-len(rows) :], rows, strict=True))
    says = tag("p", f"position_ids {list(positions.shape)}: {', '.join(named)}", class_="faint")
    first = named.pop("text", None)
    if first is not None and all(torch.equal(row, first) for row in named.values()):
        alike = f"{', '.join(named)} are the same as text: there are no media."
        return join((says, tag("p", alike, class_="faint") if named else None))
    return join((says, _runs_table(named, batch)))


def _runs_table(rows: Mapping[str, Tensor], batch: PackedBatch) -> Html:
    """Build a table of runs of tokens of one kind and one member: the first and last position in each row."""
    kinds = batch["mm_token_type_ids"].flatten()
    starts = torch.zeros(len(kinds), dtype=torch.bool)
    starts[boundaries(batch)[:-1]] = True
    starts[1:] |= kinds[1:] != kinds[:-1]
    places = [*starts.nonzero().flatten().tolist(), len(kinds)]
    lines = [
        (
            _KINDS[int(kinds[start])],
            f"{start:,}",
            f"{end:,}",
            *(f"{int(row[start:end].min()):,} – {int(row[start:end].max()):,}" for row in rows.values()),
        )
        for start, end in islice(pairwise(places), _MOST_ROWS)
    ]
    more = f"and {len(places) - 1 - _MOST_ROWS:,} more" if len(places) - 1 > _MOST_ROWS else None
    return join((table(("tokens", "from", "to", *rows), lines), tag("p", more, class_="faint")))


def bounds_table(bounds: Sequence[int], batch: PackedBatch) -> Html:
    """Build a table with a row for each member: from, to, tokens; and the length of a gap or padding behind it."""
    real = batch["seq_lens"].tolist() if "seq_lens" in batch else None
    docs = batch.get("doc_ids")
    rows = []
    for number, (start, end) in enumerate(itertools.pairwise(bounds)):
        is_padding = docs is not None and int(docs[0, start]) == 0
        gap = 0 if real is None or number >= len(real) else end - start - real[number]
        rows.append(("padding" if is_padding else f"#{number}", start, end, end - start - gap, gap))
    names = [name for name in batch if name.startswith(("cu_seq", "max_length", "max_seqlen"))]
    values = table(("key", "values"), [(tag("code", name), tag("code", _first(batch[name], 24))) for name in names], 2)
    header = ("member", "from", "to", "tokens", "gap")
    whole = table(header, [[row[0], *(f"{value:,}" for value in row[1:])] for row in rows[:_MOST_ROWS]])
    more = tag("p", f"and {len(rows) - _MOST_ROWS:,} more", class_="faint") if len(rows) > _MOST_ROWS else None
    return join((values, details(f"{len(rows):,} members and paddings", whole, more)))


def weights_section(batch: PackedBatch) -> Iterator[Html]:
    """Show how many trained tokens have which weight, if some weight is not 1."""
    name = "loss_weight" if "loss_weight" in batch else "loss_mask"
    if name not in batch:
        return
    values, counts = batch[name][batch["labels"] != IGNORE].unique(return_counts=True)
    if values.tolist() not in ([], [1.0]):
        yield tag("h3", "What counts in the loss")
        yield tag("p", "How much each trained token counts, in ", tag("code", name), ".", class_="faint")
        rows = list(zip(values.tolist(), counts.tolist(), strict=True))
        yield table(("weight", "tokens"), [(f"{value:.6g}", f"{number:,}") for value, number in rows[:_MOST_ROWS]])
        if len(rows) > _MOST_ROWS:
            yield tag("p", f"and {len(rows) - _MOST_ROWS:,} more weights", class_="faint")


def keys_table(batch: PackedBatch) -> Html:
    """List each key with its shape, its type and its first values."""
    return table(("key", "shape", "type", "first values"), list(_rows(batch)), num_words=4, class_="keys")


def _rows(batch: PackedBatch) -> Iterator[tuple[Html, str, str, Html]]:
    for name, value in batch.items():
        items = vars(value).items() if isinstance(value, SimpleNamespace) else [("", value)]
        for inner, item in items:
            if inner and item is None:
                continue
            shape, kind = ("", type(item).__name__)
            if isinstance(item, Tensor):
                shape, kind = " × ".join(map(str, item.shape)) or "scalar", str(item.dtype).removeprefix("torch.")
            yield tag("code", f"{name}.{inner}" if inner else name), shape, kind, tag("code", _first(item))


def _first(value: Any, most: int = _FIRST) -> str:
    if isinstance(value, Tensor):
        flat = value.flatten()
        words = [f"{item:.3g}" if isinstance(item, float) else str(item) for item in flat[:most].tolist()]
        return ", ".join(words) + (", …" if len(flat) > most else "")
    text = str(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
