"""A grid of packs, each drawn as a strip. The page's script sorts, filters and searches them;
without a script, the first ones are seen.

plan ──every n-th pack──► members: tokens, visual tokens, medium, id ──JSON──► strips, by pages/packs.js
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from energon_pack.errors import amount
from energon_pack.plan.items import Lengths
from energon_pack.plan.packs import PackPlan, costs_of_packs, media_of_packs, taken
from energon_pack.report.pages.html import Html, data_block, section, tag
from energon_pack.report.pages.svg import Piece, legend, strip
from energon_pack.run.seeded import Ints
from energon_pack.samples.media.kinds import MEDIA_TYPES
from energon_pack.steps.cost import CostModel

_MOST_PACKS, _MOST_MEMBERS = 2_000, 8_000  # packs and members that a page shows
_MOST_IDS_READ = 500_000  # ids are read for a page only where a run has at most so many samples
_MOST_BYTES = 300_000  # bytes of all ids on a page
_WITHOUT_SCRIPT = 16  # packs that are seen without a script; fewer where packs have many members
_MEMBERS_WITHOUT_SCRIPT = 400
#: figures by which packs are sorted and filtered, as the script names them
_MEASURES = {
    "number": "the order of the plan",
    "fill": "fill, %",
    "cost": "cost, 1 is the mean",
    "trained": "tokens trained on, %",
    "members": "members",
}


@dataclass(frozen=True)
class GridPack:
    """One pack, to be drawn as a strip."""

    number: int  # its place in the order of the plan
    medium: str
    trained: int  # tokens that are trained on
    cost: float  # of a forward pass, relative to the mean of all packs on the page
    members: list[tuple[int, int, str]]  # tokens, visual tokens and medium of each
    ids: list[str]  # of the samples; []: they were not read

    @property
    def tokens(self) -> int:
        return sum(tokens for tokens, _, _ in self.members)


@dataclass(frozen=True)
class PackGrid:
    """The packs of a plan that a page shows: all, or some that stand for all."""

    packs: list[GridPack]
    num_packs: int
    max_token_len: int


def grid_of(lengths: Lengths, plan: PackPlan, cost: CostModel, max_token_len: int) -> PackGrid:
    """Return the packs of a plan; where there are many, every second, third … of them."""
    every = max(1, -(-plan.num_packs // _MOST_PACKS), -(-len(plan.items) // _MOST_MEMBERS))
    numbers = np.arange(0, plan.num_packs, every)
    shown, items = taken(plan, [numbers]), lengths.items
    some = items.take(shown.items)
    lens, visual, media = (values.tolist() for values in (some.lens, some.counts["num_visual_tokens"], some.media))
    members = list(zip(lens, visual, map(MEDIA_TYPES.__getitem__, media), strict=True))
    costs = costs_of_packs(items, shown, cost).sum(axis=0)
    costs = costs / (float(costs.mean()) if len(costs) else 1.0)
    trained, medium = shown.per_pack(items.num_supervised).tolist(), media_of_packs(items, shown).tolist()
    ids = _ids(lengths, shown.items)
    bounds = shown.starts.tolist()
    packs = [
        GridPack(number, MEDIA_TYPES[medium[i]], trained[i], float(costs[i]), members[start:end], ids[start:end])
        for i, (number, start, end) in enumerate(zip(numbers.tolist(), bounds, bounds[1:], strict=False))
    ]
    return PackGrid(packs, plan.num_packs, max_token_len)


def _ids(lengths: Lengths, items: Ints) -> list[str]:
    """Return the ids of samples; [] where there are too many to be read, or to be in a page."""
    if lengths.num_samples > _MOST_IDS_READ:
        return []
    ids = [""] * len(items)
    for of_items, chunk, rows in lengths.places(items):
        table, numbers = chunk.read(["key"]).take(rows), chunk.numbers_of_rows[rows]
        for place, sample_id in zip(of_items.tolist(), lengths.sample_ids(numbers, table), strict=True):
            ids[place] = sample_id
    return ids if sum(len(name.encode(errors="replace")) + 2 for name in ids) <= _MOST_BYTES else []


def grid_section(grid: PackGrid, folder: str | None) -> Html | None:
    """Build the section with the strips of the packs, and the data from which the page's script draws them.

    Args:
        folder: of the dataset; None: no dataset is written.
    """
    if not grid.packs:
        return None
    every = -(-grid.num_packs // len(grid.packs))
    said = "A strip is a pack: what its members hold; every second member is paler, the rest is padding."
    if every > 1:
        said += f" Of {grid.num_packs:,} packs one in {every:,} is here: {len(grid.packs):,}."
    has_ids = any(pack.ids for pack in grid.packs)
    upto = np.cumsum([len(pack.members) for pack in grid.packs[:_WITHOUT_SCRIPT]])
    first = grid.packs[: int((upto <= _MEMBERS_WITHOUT_SCRIPT).sum())]
    most = grid.max_token_len
    rows = [tag("div", tag("span", _facts(pack, most)), pack_strip(pack, most), class_="pack-row") for pack in first]
    more = len(grid.packs) - len(first)
    rest = tag("p", f"and {more:,} more, which a script shows", class_="faint") if more else None
    kinds = {kind: None for pack in grid.packs for _, visual, kind in pack.members if visual}
    return section(
        "What does each pack hold?",
        _controls(grid, has_ids),
        legend(dict.fromkeys(["text", *kinds, "padding"])),
        tag("div", *rows, rest, id="packs-list"),
        data_block("packs-data", _data(grid, folder)),
        says=said,
        name="grid",
    )


def _controls(grid: PackGrid, has_ids: bool) -> Html:
    """Build the fields to type in and to choose from; the page's script shows them."""
    kinds = sorted({pack.medium for pack in grid.packs}, key=MEDIA_TYPES.index)
    options = [tag("option", what, value=name) for name, what in _MEASURES.items()]
    media = [tag("option", "all media", value=""), *(tag("option", f"{kind} packs", value=kind) for kind in kinds)]
    search = tag("input", type="search", id="packs-search", placeholder="part of a sample's id", aria_label="search")
    return tag(
        "div",
        tag("label", "by ", tag("select", *options, id="packs-by")),
        tag("label", "from ", tag("input", type="number", id="packs-least", step="any", aria_label="from")),
        tag("label", "to ", tag("input", type="number", id="packs-most", step="any", aria_label="to")),
        tag("label", tag("input", type="checkbox", id="packs-falling"), " largest first"),
        tag("select", *media, id="packs-medium", aria_label="medium") if len(kinds) > 1 else None,
        search if has_ids else None,
        tag("span", id="packs-told", class_="faint"),
        class_="controls",
        id="packs-controls",
        hidden=True,
    )


def pack_strip(pack: GridPack, max_token_len: int) -> Html:
    """Draw a pack as a strip."""
    pieces = [
        Piece(kind, size, f"{kind}, {size:,} tokens", number % 2 == 1)
        for number, (tokens, visual, medium) in enumerate(pack.members)
        for kind, size in ((medium, visual), ("text", tokens - visual))
        if size
    ]
    return strip(pieces, max(max_token_len, pack.tokens), 14)


def _facts(pack: GridPack, max_token_len: int) -> str:
    num, tokens = len(pack.members), pack.tokens
    return (
        f"{pack.number:,} · {tokens / max_token_len:.1%} full · {pack.trained / max(1, tokens):.0%} trained on ·"
        f" cost {pack.cost:.2f} · {amount(num, 'member')}"
    )


def _data(grid: PackGrid, folder: str | None) -> dict[str, object]:
    """Return the data that the page's script reads."""
    return {
        "most": grid.max_token_len,
        "command": f"python -m energon_pack.inspect {shlex.quote(folder)}" if folder else "",
        "media": MEDIA_TYPES,
        "packs": [
            [
                pack.number,
                MEDIA_TYPES.index(pack.medium),
                pack.trained,
                round(pack.cost, 3),
                _flat(pack.members),
                "\n".join(pack.ids),
            ]
            for pack in grid.packs
        ],
    }


def _flat(members: Sequence[tuple[int, int, str]]) -> list[int]:
    return [value for tokens, visual, kind in members for value in (tokens, visual, MEDIA_TYPES.index(kind))]
