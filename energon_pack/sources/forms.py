"""Recognise the files of a source by their names: tars, lines of JSON, tables, or several of these.

    source.path ──each entry──► its forms ──find_shards, find_lines──► one source

A folder may hold several forms. `source=wds`, `jsonl` or `table` reads only one of them.
"""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import fields, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from energon_pack.errors import PackError
from energon_pack.samples.settings import ReadSettings
from energon_pack.sources.find import LINES, TARS, find_shards
from energon_pack.sources.folder_shard import MEDIA, FolderShard, find_folders
from energon_pack.sources.jsonl.find import find_lines, kind_of_lines, read_meta_mixture
from energon_pack.sources.lmdb_shard import LmdbShard
from energon_pack.sources.media_root import find_media_root
from energon_pack.sources.metadataset import read_metadataset
from energon_pack.sources.mixture import Entry, Mixture, read_mixture
from energon_pack.sources.own import Own, own_settings
from energon_pack.sources.packs import with_members
from energon_pack.sources.settings import Format, SourceConfig
from energon_pack.sources.shard import JsonlShard, Shard, Source, TarShard
from energon_pack.sources.splits import with_samples
from energon_pack.sources.storage import expand, folder_of, walk
from energon_pack.sources.table_shard import TableShard

_LEDGER = "skipped.jsonl"  # the ledger that packing and converting write beside their output
_TABLES = re.compile(r"(?i)\.(parquet|arrow)$")  # if there are such files, a CSV may be anything
_LINES: dict[Format, type[JsonlShard]] = {
    Format.jsonl: JsonlShard,
    Format.table: TableShard,
    Format.lmdb: LmdbShard,
    Format.folder: FolderShard,
}
_KINDS = {Format.wds: TarShard, **_LINES}


def find_source(settings: SourceConfig, path: Any, copies: Path | None = None) -> Source:
    """Find the files of a source, in the form that the settings name, or that their names show.

    Args:
        path: as `source.path`.
        copies: where uncompressed copies of compressed tars are kept; None: compressed tars are refused.

    Raises:
        PackError: like `find_shards` and `find_lines`, and for an entry with files of two forms.
    """
    mixed = read_mixture(path) or read_metadataset(path, settings.split) or read_meta_mixture(path, settings)
    if mixed:
        return _mixed(settings, mixed, copies)
    if settings.format != Format.auto:
        if settings.format == Format.folder:
            return find_folders([path] if isinstance(path, str) else path, settings.classes, settings.remote_media)
        if kind := kind_of_lines(settings.format):
            return _lines(settings, path, kind, copies)
        return _as_mapped(find_shards(path, settings.split, copies), settings)
    entries: dict[Format, list[str]] = {}
    stems: set[str] = set()
    for entry in [path] if isinstance(path, str) else path:
        looked = look(entry)
        stems |= looked.stems
        for form in looked.forms:
            entries.setdefault(form, []).append(entry)
    parts = []
    if tars := entries.get(Format.wds):
        parts.append(_as_mapped(find_shards(tars, settings.split, copies), settings))
    for form, chosen in ((Format.jsonl, _with_samples), (Format.table, _tables), (Format.lmdb, _with_samples)):
        if named := entries.get(form):
            parts.append(_lines(settings, named, _LINES[form], copies, partial(chosen, stems)))
    if folders := entries.get(Format.folder):
        parts.append(find_folders(folders, settings.classes, settings.remote_media))
    elif settings.classes is not None:
        raise PackError(f"source.classes={settings.classes.value}: {path} has samples of another form")
    return parts[0] if len(parts) == 1 else _together(parts)


def _mixed(settings: SourceConfig, entries: Sequence[Entry], copies: Path | None) -> Source:
    """Find the files of all entries; if there are several, ids of samples begin with the name of their entry."""
    parts, entry_of, seen = [], dict[str, int](), dict[str, str]()
    alone = replace(settings, format=Format.auto.value)
    for number, entry in enumerate(entries):
        own = own_settings(f"mixture: {entry.name}", entry.own, settings.reading)
        try:
            part = find_source(_read_as(replace(alone, **entry.settings), own), entry.path, copies)
        except PackError as error:
            raise PackError(f"mixture: {entry.name}: {error}") from None
        if part.mixture is not None:
            raise PackError(f"mixture: {entry.name} is a mixture itself: write its entries here")
        if len(entries) > 1:
            part = _renamed(part, entry.name)
        for shard in part.shards:
            if shard.ratio != 1:
                raise PackError(f"mixture: {entry.name}: {shard.name} has a sample_ratio: name the file with epochs")
            if (other := seen.setdefault(shard.real_path, entry.name)) != entry.name:
                raise PackError(f"mixture: {shard.path} is in {other} and in {entry.name}: one of them may have it")
            entry_of[shard.name] = number
        parts.append(replace(part, shards=[replace(shard, own=own) for shard in part.shards]) if own.identity else part)
    return replace(_together(parts), mixture=Mixture(tuple(entries), entry_of))


def _read_as(settings: SourceConfig, own: Own) -> SourceConfig:
    """Return the settings, overridden by an entry's own settings for reading records."""
    read = {} if own.reading is None else {each.name: getattr(own.reading, each.name) for each in fields(ReadSettings)}
    return replace(settings, **read)


def _renamed(part: Source, name: str) -> Source:
    return replace(part, shards=[replace(shard, name=f"{name}/{shard.name}") for shard in part.shards])


def _lines(
    settings: SourceConfig,
    path: str | Sequence[str],
    kind: type[JsonlShard],
    copies: Path | None,
    chosen: Callable[[Sequence[str]], list[str]] = list,
) -> Source:
    root, remote, split, datasets = settings.media_root, settings.remote_media, settings.split, settings.datasets
    source = find_lines(path, root, remote, kind, split, copies, datasets, chosen)
    if root is not None:
        return source
    return replace(source, shards=[_with_media_root(shard, settings.reading) for shard in source.shards])


def _as_mapped(source: Source, settings: SourceConfig) -> Source:
    """Return tars of packs by their members, others with the field maps of their folders, or without if settings name
    the fields to read.

    Raises:
        PackError: a field map can't be followed; or as `with_members`.
    """
    source = with_members(source)
    tars = [shard for shard in source.shards if isinstance(shard, TarShard)]
    if settings.map is not None or settings.renames or settings.messages_key:
        return replace(source, shards=[replace(shard, field_map=None) for shard in tars])
    maps = (shard.field_map for shard in tars)
    if why := next((each.refusal for each in maps if each is not None and each.refusal), None):
        raise PackError(why)
    return source


def _with_media_root(shard: Shard, settings: ReadSettings) -> Shard:
    """Return a file of lines, with the folder of its media if that is not its own."""
    if not isinstance(shard, JsonlShard) or shard.media_root != folder_of(shard.path):
        return shard  # a meta file names it
    root = find_media_root(shard, settings)
    return shard if root is None else replace(shard, lines=replace(shard.lines, media_root=root))


class Looked(NamedTuple):
    forms: list[Format]
    stems: set[str]  # paths of tars in folders, without their extensions


def look(entry: str) -> Looked:
    """Return the forms of the files that an entry of `source.path` stands for; a file with an unknown name is lines.

    Raises:
        PackError: there are no files; or a JSONL file has the name of a tar beside it: its lines may be about the tar.
    """
    _, folders, files = expand(entry)
    forms, stems = set(map(_form_of_file, files)), set[str]()
    for folder in folders:
        tars = walk(folder, TARS)
        stems |= set(map(_stem, tars))
        lines = _with_samples((), walk(folder, JsonlShard.names))
        if about := next((file for file in lines if _stem(file) in stems), None):
            raise PackError(
                f"source.path={entry}: {about} has the name of a tar beside it: source=wds reads the tars,"
                " source=jsonl the lines, a list of globs in source.path both"
            )
        tables = with_samples(_tables(stems, walk(folder, TableShard.names)))
        if tars or lines:  # if there are other samples, a CSV may be anything
            tables = list(filter(_TABLES.search, tables))
        found = ((Format.wds, tars), (Format.jsonl, lines), (Format.table, tables))
        forms |= {form for form, there in found if there}
    if not forms:  # for *.json, finding lines gives advice
        others = ((Format.lmdb, LmdbShard.names), (Format.folder, MEDIA), (Format.jsonl, LINES))
        there = (form for form, names in others if any(walk(folder, names) for folder in folders))
        forms |= {*islice(there, 1)}
    if not forms:
        raise PackError(f"source.path={entry}: no *.tar, *.jsonl, *.parquet, *.arrow, *.csv, *.tsv or media there")
    return Looked([form for form in _KINDS if form in forms], stems)


def _with_samples(stems: Collection[str], files: Sequence[str]) -> list[str]:
    """Leave out ledgers, and the tables that img2dataset writes beside its tars."""
    return [file for file in files if not file.endswith(_LEDGER) and _stem(file) not in stems]


def _tables(stems: Collection[str], files: Sequence[str]) -> list[str]:
    """Take Parquet and Arrow; if there is none, CSV and TSV."""
    tables = _with_samples(stems, files)
    return list(filter(_TABLES.search, tables)) or tables


def format_of(source: Source) -> Format:
    """Return the format that reads all files of a source; `auto` if there are several formats."""
    kinds = {TarShard if isinstance(shard, TarShard) else type(shard) for shard in source.shards}
    return next((form for form, kind in _KINDS.items() if kinds == {kind}), Format.auto)


def _form_of_file(file: str) -> Format:
    if TARS.search(file):
        return Format.wds
    return next((form for form in (Format.table, Format.lmdb) if _LINES[form].names.search(file)), Format.jsonl)


def _stem(file: str) -> str:
    return re.sub(r"(?i)\.(parquet|jsonl(\.\w+)?)$", "", TARS.sub("", file))


def _together(parts: Sequence[Source]) -> Source:
    """Join sources into one; files keep the names that they have in their own source."""
    return Source(
        shards=sorted((shard for part in parts for shard in part.shards), key=lambda shard: shard.name),
        folders=frozenset().union(*(part.folders for part in parts)),
        num_left_out=sum(part.num_left_out for part in parts),
        stored=frozenset().union(*(part.stored for part in parts)),
    )
