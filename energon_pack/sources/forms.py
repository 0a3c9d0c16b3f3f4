"""Finds out what the files of a source are, by their names: tars, lines of JSON, tables, or some of each.

    source.path ──each entry──► its form ──find_shards, find_lines──► one source

A folder or glob with files of two forms is refused: which of them are samples is the user's to say. Entries of two
forms, each named by itself, are one source.
"""

import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from energon_pack.errors import PackError, amount
from energon_pack.sources.find import LINES, TARS, find_shards
from energon_pack.sources.jsonl.find import find_lines, kind_of_lines
from energon_pack.sources.settings import Format, SourceConfig
from energon_pack.sources.shard import JsonlShard, Shard, Source, TarShard
from energon_pack.sources.splits import with_samples
from energon_pack.sources.storage import expand, walk
from energon_pack.sources.table_shard import TableShard

_LEDGER = "skipped.jsonl"  # which packing and converting leave beside what they write
_TABLES = re.compile(r"\.(parquet|arrow)$")  # a CSV in a folder may be anything
_KINDS = {Format.wds: TarShard, Format.jsonl: JsonlShard, Format.table: TableShard}
_CALLED = {
    Format.wds: "WebDataset tars",
    Format.jsonl: "JSONL",
    ".parquet": "Parquet",
    ".arrow": "Arrow",
    ".csv": "CSV",
    ".tsv": "TSV",
}
_NAMES = {Format.wds: "*.tar", Format.jsonl: "*.jsonl", Format.table: "*.parquet or *.arrow"}


def find_source(settings: SourceConfig, path: str | Sequence[str], copies: Path | None = None) -> Source:
    """Find the files of a source, read as the settings say, or as they look.

    Args:
        copies: where uncompressed copies of compressed tars are kept; None: these are refused.

    Raises:
        PackError: as `find_shards` and `find_lines`, and for an entry with files of two forms.
    """
    if settings.format != Format.auto:
        if kind := kind_of_lines(settings.format):
            return _lines(settings, path, kind, copies)
        return find_shards(path, settings.split, copies)
    entries: dict[Format, list[str]] = {}
    for entry in [path] if isinstance(path, str) else path:
        entries.setdefault(form_of(entry), []).append(entry)
    parts = []
    if tars := entries.get(Format.wds):
        parts.append(find_shards(tars, settings.split, copies))
    for form, kind in ((Format.jsonl, JsonlShard), (Format.table, TableShard)):
        if named := entries.get(form):
            parts.append(_lines(settings, named, kind, copies))
    return parts[0] if len(parts) == 1 else _together(parts)


def _lines(settings: SourceConfig, path: str | Sequence[str], kind: type[JsonlShard], copies: Path | None) -> Source:
    root, remote, split, chosen = settings.media_root, settings.remote_media, settings.split, settings.datasets
    return find_lines(path, root, remote, kind, split, copies, chosen)


def form_of(entry: str) -> Format:
    """Tell the form of the files that an entry of `source.path` stands for; a file of no known name is lines.

    Raises:
        PackError: it has files of two forms, or none.
    """
    _, folders, files = expand(entry)
    forms = Counter(map(_form_of_file, files))
    for folder in folders:
        tars = walk(folder, TARS)
        stems = {_stem(tar) for tar in tars}  # img2dataset writes a table about each tar beside it
        forms[Format.wds] += len(tars)
        forms[Format.jsonl] += sum(not file.endswith(_LEDGER) for file in walk(folder, JsonlShard.names))
        forms[Format.table] += sum(_stem(file) not in stems for file in with_samples(walk(folder, _TABLES)))
    there = [form for form in _NAMES if forms[form]]
    if len(there) > 1:
        seen = " and ".join(f"{forms[form]:,} {_NAMES[form]}" for form in there)
        ways = " or ".join(f"source={form.value}" for form in there)
        raise PackError(
            f"source.path={entry}: there are {seen}; {ways} reads one of them, and a list of globs in source.path"
            " reads both"
        )
    if not there and any(walk(folder, LINES) for folder in folders):  # *.json, which finding lines has advice about
        return Format.jsonl
    if not there:
        raise PackError(f"source.path={entry}: no *.tar, *.jsonl, *.parquet or *.arrow there")
    return there[0]


def read_as(source: Source) -> str:
    """Describe the form of a source in a line."""
    numbers = Counter(map(_called, source.shards))
    return "; ".join(f"{name}, {amount(numbers[name], 'file')}" for name in _CALLED.values() if numbers[name])


def format_of(source: Source) -> Format:
    """Tell which format reads all of a source; `auto` if it has files of several."""
    kinds = {type(shard) for shard in source.shards}
    return next((form for form, kind in _KINDS.items() if kinds == {kind}), Format.auto)


def _form_of_file(file: str) -> Format:
    return Format.wds if TARS.search(file) else Format.table if TableShard.names.search(file) else Format.jsonl


def _stem(file: str) -> str:
    return TARS.sub("", file).removesuffix(".parquet")


def _called(shard: Shard) -> str:
    if isinstance(shard, TableShard):
        return _CALLED[os.path.splitext(shard.path)[1]]
    return _CALLED[Format.wds if isinstance(shard, TarShard) else Format.jsonl]


def _together(parts: Sequence[Source]) -> Source:
    """Make one source; its files have the names that they have in their own."""
    return Source(
        shards=sorted((shard for part in parts for shard in part.shards), key=lambda shard: shard.name),
        folders=frozenset().union(*(part.folders for part in parts)),
        excluded={name: keys for part in parts for name, keys in part.excluded.items()},
        num_left_out=sum(part.num_left_out for part in parts),
        stored=frozenset().union(*(part.stored for part in parts)),
    )
