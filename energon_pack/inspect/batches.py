"""Show a batch: where members begin, and what each key holds."""

import itertools
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from energon_pack.report.pages.html import Html, details, join, table, tag
from energon_pack.training.batch import PackedBatch

_MOST_ROWS = 64  # rows of a table of boundaries
_FIRST = 8  # values of a tensor that are shown
_WAYS = {
    "positions": "by positions that start again; kernels of variable length get cu_seqlens",
    "dict4d": "by masks made from position_ids",
    "prefix4d": "by a mask in which all before the answer is seen in both directions",
    "hybrid": "by seq_idx and positions that start again",
    "indexed": "by an attention_mask that numbers the members",
    "auto": "by what is found for the model",
}


def batch_section(batch: PackedBatch) -> Html:
    """Show boundaries, masks and keys of a batch of one pack."""
    bounds = boundaries(batch)
    ways = "by masks, or a plan, made from tree_end" if "tree_end" in batch else _WAYS.get(batch.mask, batch.mask)
    return join(
        (
            tag("h3", "Where members begin"),
            bounds_table(bounds, batch),
            tag("p", f"Members are kept apart {ways}.", class_="faint"),
            tag("h3", "Keys of the batch"),
            keys_table(batch),
        )
    )


def boundaries(batch: PackedBatch) -> list[int]:
    """Return where each member begins in the row, and where the last one ends."""
    names = ("cu_seqlens_q_padded", "cu_seqlens_q", "cu_seq_lens_q")
    bounds: list[int] = next(batch[name].tolist() for name in names if name in batch)
    return bounds


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
