"""Open a packed dataset to look at it, or at any of its packs."""

import io
import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from energon_pack.dataset.files import LEDGER, PLAN, PlanFile, at
from energon_pack.dataset.folder import DatasetFolder, opened
from energon_pack.dataset.lookup import LocatedPack, PackLookup
from energon_pack.dataset.manifest import MANIFEST, REPORT, is_packed_here
from energon_pack.errors import PackError, amount
from energon_pack.report.views.packed import Place, pack_view
from energon_pack.report.views.view import PackView
from energon_pack.run.files import META_FOLDER
from energon_pack.samples.bytes import as_file
from energon_pack.samples.flavors import flavor_written
from energon_pack.sources.jsonl.index import LINE
from energon_pack.sources.shard import JsonlShard, TarShard

if TYPE_CHECKING:  # a look at a pack needs no tokenizer
    from energon_pack.report.views.spans import Vocabulary


@dataclass(frozen=True)
class Opened:
    """A packed dataset."""

    folder: DatasetFolder
    manifest: dict[str, Any]
    report: dict[str, Any]
    packs: PackLookup
    notes: list[str] = field(default_factory=list)  # what can't be read in it

    @property
    def plan(self) -> PlanFile | None:
        """Return the plan; None: there is none."""
        return PlanFile(self.folder) if self.folder.has(PLAN) else None

    def number_of(self, named: str) -> int:
        """Return the number of the pack that is meant: by a number, from the end if negative, or by a key."""
        num_packs = len(self.packs)
        if named.lstrip("-").isdecimal():
            number = int(named) + (num_packs if named.startswith("-") else 0)
            if 0 <= number < num_packs:
                return number
            raise PackError(f"pack {named} of {self.folder}: there are {num_packs:,}, from 0 on")
        found = self.packs.number_of(named)
        if found is None:
            raise PackError(f"pack {named} of {self.folder}: no such key; --search {shlex.quote(named)} looks in ids")
        return found

    def view(self, located: LocatedPack, vocabulary: "Vocabulary | None" = None, max_thumbnails: int = 0) -> PackView:
        """Build the view of a pack; raises PackError if it is damaged."""
        plan, key = self.plan, located.pack.files.key
        rows = plan.members({key}).get(key) if plan else None
        longest = self.manifest.get("max_token_len")
        place = Place(located.number, len(self.packs), located.shard, longest if type(longest) is int else None)
        return pack_view(located.file, located.pack, place, rows, vocabulary, max_thumbnails, located.defects)


def open_dataset(dataset: str | Path) -> Opened:
    """Open a packed dataset."""
    folder = opened(dataset)
    if not folder.is_there:
        raise PackError(
            f"{folder} is no packed dataset: nothing is in it, or it is a file: give a folder (Metadatasets name some);"
            f" of a source: --source {shlex.quote(folder.path)}"
        )
    notes: list[str] = []
    manifest = _read(folder, f"{META_FOLDER}/{MANIFEST}", notes)
    report = _read(folder, REPORT, notes)
    packs = PackLookup(folder, flavor_written(manifest.get("flavor")))
    if not folder.shards:
        below = list(islice(filter(is_packed_here, map(folder.path_of, folder.folders)), 4))
        beside = f"; packed datasets in it: {', '.join(below)}" if below else ""
        raise PackError(f"{folder} is no packed dataset: no *.tar there{beside}")
    if not (manifest or folder.has(PLAN)):
        raise PackError(
            f"{folder} is no packed dataset: it has no {META_FOLDER}/{MANIFEST}; of a source: --source"
            f" {shlex.quote(folder.path)} +model=MODEL (packs of another tool are a source, too)"
        )
    if not len(packs):
        raise PackError(f"{folder}: its shards hold no pack: python -m energon_pack.verify says what is wrong")
    if not manifest and not notes:
        notes.append(f"{META_FOLDER}/{MANIFEST} is missing")
    return Opened(folder, manifest, report, packs, notes)


def _read(folder: DatasetFolder, name: str, notes: list[str]) -> dict[str, Any]:
    try:
        return folder.read_object(name)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        notes.append(f"{name.rpartition('/')[2]} can't be read: {error}")
        return {}


def about(opened: Opened) -> Iterator[str]:
    """Describe a dataset in a few lines; what a damaged one does not say is `?`."""
    manifest, report, packs = opened.manifest, opened.report, opened.packs
    flavor, model = manifest.get("flavor") or packs[0].pack.flavor.name, at(manifest, "content", "model", "name")
    for_model = model or "no model that it names"
    yield f"{opened.folder}: {flavor}, for {for_model}, layout {manifest.get('layout', '?')}"
    facts = [f"{amount(len(packs), 'pack')} in {amount(len(packs.counts), 'shard')}"]
    facts[0] += f", {_number(manifest.get('num_samples'))} samples"
    facts.append(f"{_number(manifest.get('num_tokens'))} tokens")
    if isinstance(fill := report.get("fill"), (int, float)):
        facts.append(f"fill {fill:.2%} of {_number(manifest.get('max_token_len'))}")
    yield " · ".join(facts)
    kinds = [f"{kind} {_number(at(of, 'samples'))}" for kind, of in _items(report.get("by_media"))]
    parts = [f"{split} {_number(at(of, 'packs'))} packs" for split, of in _items(report.get("by_split"))]
    yield " · ".join(f"{name}: {', '.join(said)}" for name, said in (("samples", kinds), ("splits", parts)) if said)
    processor = at(report, "config", "model", "processor") or at(manifest, "content", "model", "hub_id")
    is_demo = report and at(report, "config", "source", "path") is None
    yield f"processor when it was packed: {'of the built-in demo' if is_demo else processor}"


def _items(value: Any) -> Any:
    return value.items() if isinstance(value, dict) else ()


def _number(value: Any) -> str:
    return f"{value:,}" if type(value) is int else "?"


class Hit(NamedTuple):
    """A member whose id, or whose pack's key, contains the searched text."""

    rank: int  # 0: id or key equals the text
    number: int  # of the pack
    member: int
    key: str  # of the pack
    sample_id: str


def search(opened: Opened, text: str, most: int) -> tuple[list[Hit], int]:
    """Return the first `most` hits in the plan, exact ones first, and the number of all."""
    if opened.plan is None:
        raise PackError(f"--search {text}: {opened.folder} has no {PLAN}, which names the members of packs")
    hits: list[Hit] = []
    num_hits = first = 0  # first: the first pack of a row group
    for table in opened.plan.tables("pack", "shard", "key", "record_part"):
        packs, ids = table["pack"].combine_chunks(), ids_of(table)
        is_first = np.append(True, pc.not_equal(packs[1:], packs[:-1]).to_numpy(zero_copy_only=False))
        starts = np.flatnonzero(is_first)
        is_hit = pc.or_kleene(pc.match_substring(packs, text), pc.match_substring(ids, text))
        rows = np.flatnonzero(pc.fill_null(is_hit, False).to_numpy(zero_copy_only=False))
        numbers = np.searchsorted(starts, rows, side="right") - 1
        for row, number in zip(rows.tolist(), numbers.tolist(), strict=True):
            key, name, sample = packs[row].as_py(), ids[row].as_py(), table["key"][row].as_py()
            hits.append(Hit(int(text not in (key, name, sample)), first + number, row - int(starts[number]), key, name))
        num_hits, first = num_hits + len(rows), first + len(starts)
        hits = nsmallest(most, hits)
    members = opened.plan.members({hit.key for hit in hits})  # only they name parts of samples
    return [hit._replace(sample_id=members[hit.key][hit.member].sample_id) for hit in hits], num_hits


def skipped(opened: Opened, text: str, most: int) -> Iterator[str]:
    """Yield the first `most` samples in no pack, and why, from the ledger; lines that are no entries are left out."""
    if not opened.folder.has(LEDGER):
        return
    with opened.folder.open(LEDGER) as file:
        lines = io.TextIOWrapper(as_file(file, 1 << 20), encoding="utf-8", errors="replace")
        lost = (entry for entry in map(_entry, lines) if text in str(at(entry, "sample_id")))
        for entry in islice(lost, most):
            yield f"{entry['sample_id']}: {entry.get('reason')}: {entry.get('detail')}"


def _entry(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def ids_of(table: pa.Table) -> pa.Array:
    """Return `<shard>/<key>` of each row; of a line, `<file>:<line>`."""
    is_line = pc.fill_null(pc.equal(table["record_part"], LINE), False)
    marks = pc.if_else(is_line, JsonlShard.mark, TarShard.mark)
    columns = [column.cast(pa.large_string()) for column in (table["shard"], marks, table["key"])]
    return pc.binary_join_element_wise(*columns, pa.scalar("", pa.large_string())).combine_chunks()
