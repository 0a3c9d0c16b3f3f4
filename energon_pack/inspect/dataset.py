"""Open a packed dataset to look at it, or at any of its packs."""

import io
import json
import shlex
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from energon_pack.dataset.files import LEDGER, PLAN, PlanFile, nested_value
from energon_pack.dataset.folder import DatasetFolder, open_dataset_folder
from energon_pack.dataset.manifest import MANIFEST, REPORT, has_manifest
from energon_pack.dataset.pack_json import LocatedPack, PackLookup
from energon_pack.errors import PackError, amount
from energon_pack.report.views.packed import read_pack_view
from energon_pack.report.views.view import PackPlace, PackView
from energon_pack.run.files import META_FOLDER
from energon_pack.samples.bytes import as_file
from energon_pack.samples.flavors import packed_flavor_or_default

if TYPE_CHECKING:  # a look at a pack needs no tokenizer
    from energon_pack.report.views.view import TokenDecoder


@dataclass(frozen=True)
class OpenDataset:
    """An open packed dataset: its folder, manifest and report ({} if missing), and its packs by number."""

    folder: DatasetFolder
    manifest: dict[str, Any]
    report: dict[str, Any]
    packs: PackLookup
    notes: list[str] = field(default_factory=list)  # what can't be read in it

    @property
    def plan(self) -> PlanFile | None:
        """Return the plan; None: there is none."""
        return PlanFile(self.folder) if self.folder.has(PLAN) else None

    def number_of(self, pack_or_sample: str) -> int:
        """Return the number of a pack.

        `pack_or_sample`: its number, from the end if negative; its key; or the id or key of a sample in it.

        Raises:
            PackError: there is no such pack; for a sample that was left out, with the reason.
        """
        num_packs = len(self.packs)
        if pack_or_sample.lstrip("-").isdecimal():
            number = int(pack_or_sample) + (num_packs if pack_or_sample.startswith("-") else 0)
            if 0 <= number < num_packs:
                return number
            raise PackError(f"pack {pack_or_sample} of {self.folder}: there are {num_packs:,}, from 0 on")
        found = self.packs.number_of(self._key_of_pack_with(pack_or_sample) or pack_or_sample)
        if found is None:
            why = next(
                self._reasons_left_out(pack_or_sample),
                "no such key of a pack, and no such sample in its plan or ledger",
            )
            raise PackError(f"{pack_or_sample} of {self.folder}: {why}")
        return found

    def _key_of_pack_with(self, sample: str) -> str | None:
        """Return the key of the first pack with a sample: `<shard>/<key>`, `<file>:<line>`, or its key alone."""
        shards = {sample[place + 1 :]: sample[:place] for place, sign in enumerate(sample) if sign in "/:"}
        for table in self.plan.tables("pack", "shard", "key") if self.plan else ():
            for row in table.filter(pc.is_in(table["key"], pa.array([sample, *shards]))).to_pylist():
                if row["key"] == sample or shards[row["key"]] == row["shard"]:
                    return str(row["pack"])
        return None

    def _reasons_left_out(self, sample: str) -> Iterator[str]:
        """Yield the reasons in the ledger for which a sample (its id) is in no pack; broken lines are skipped."""
        if not self.folder.has(LEDGER):
            return
        with self.folder.open(LEDGER) as file:
            for line in io.TextIOWrapper(as_file(file, 1 << 20), encoding="utf-8", errors="replace"):
                with suppress(ValueError):
                    if sample in line and nested_value(entry := json.loads(line), "sample_id") == sample:
                        yield f"in no pack: {entry.get('reason')}: {entry.get('detail')}"

    def view(self, located: LocatedPack, vocabulary: "TokenDecoder | None" = None, max_thumbnails: int = 0) -> PackView:
        """Return a pack in the form that terminal and page show. `vocabulary`: turns ids into text; None: no text."""
        plan, key = self.plan, located.pack.files.key
        rows = plan.rows_of_packs({key}).get(key) if plan else None
        longest = self.manifest.get("max_token_len")
        place = PackPlace(located.number, len(self.packs), located.shard, longest if type(longest) is int else None)
        return read_pack_view(located.file, located.pack, place, rows, vocabulary, max_thumbnails, located.defects)


def open_dataset(dataset: str | Path) -> OpenDataset:
    """Open a packed dataset by its folder or address; raises PackError if it is none, or holds no pack."""
    folder = open_dataset_folder(dataset)
    if not folder.has_files:
        raise PackError(
            f"{folder} is no packed dataset: nothing is in it, or it is a file: give a folder (Metadatasets name some);"
            f" of a source: --source {shlex.quote(folder.path)}"
        )
    notes: list[str] = []
    manifest = _read_object(folder, f"{META_FOLDER}/{MANIFEST}", notes)
    report = _read_object(folder, REPORT, notes)
    packs = PackLookup(folder, packed_flavor_or_default(manifest.get("flavor")))
    if not folder.shards:
        below = list(islice(filter(has_manifest, map(folder.path_of, folder.other_subfolders)), 4))
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
    return OpenDataset(folder, manifest, report, packs, notes)


def _read_object(folder: DatasetFolder, name: str, notes: list[str]) -> dict[str, Any]:
    try:
        return folder.read_json_object(name)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        notes.append(f"{name.rpartition('/')[2]} can't be read: {error}")
        return {}


def description_lines(opened: OpenDataset) -> Iterator[str]:
    """Yield lines that describe a dataset: flavour, model, counts, fill; a missing count is `?`."""
    manifest, report, packs = opened.manifest, opened.report, opened.packs
    flavor, model = (
        manifest.get("flavor") or packs[0].pack.flavor.name,
        nested_value(manifest, "content", "model", "name"),
    )
    for_model = model or "no model that it names"
    yield f"{opened.folder}: {flavor}, for {for_model}, layout {manifest.get('layout', '?')}"
    facts = [f"{amount(len(packs), 'pack')} in {amount(len(packs.shard_counts), 'shard')}"]
    facts[0] += f", {_count_text(manifest.get('num_samples'))} samples"
    facts.append(f"{_count_text(manifest.get('num_tokens'))} tokens")
    if isinstance(fill := report.get("fill"), (int, float)):
        facts.append(f"fill {fill:.2%} of {_count_text(manifest.get('max_token_len'))}")
    yield " · ".join(facts)
    kinds = [
        f"{kind} {_count_text(nested_value(of, 'samples'))}" for kind, of in _items_or_none(report.get("by_media"))
    ]
    parts = [
        f"{split} {_count_text(nested_value(of, 'packs'))} packs"
        for split, of in _items_or_none(report.get("by_split"))
    ]
    yield " · ".join(f"{name}: {', '.join(said)}" for name, said in (("samples", kinds), ("splits", parts)) if said)
    processor = nested_value(report, "config", "model", "processor") or nested_value(
        manifest, "content", "model", "hub_id"
    )
    is_demo = report and nested_value(report, "config", "source", "path") is None
    yield f"processor when it was packed: {'of the built-in demo' if is_demo else processor}"


def _items_or_none(value: Any) -> Any:
    return value.items() if isinstance(value, dict) else ()


def _count_text(value: Any) -> str:
    return f"{value:,}" if type(value) is int else "?"
