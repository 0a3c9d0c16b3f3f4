"""Build the source that `source.path` names: files of one form or of several, or a mixture of such sources.

    source.path ──┬── a mixture: its entries ──► find_source of each ──► their files, named after their entry
                  └── anything else ──find_forms──► its formats ──find_source_of_format──► files of each format

A folder may hold several formats. `source=wds`, `jsonl` or `table` reads only one of them.
"""

import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache, reduce
from operator import or_
from typing import Any, NamedTuple

from energon_pack.errors import PackError, amount
from energon_pack.run.console import say
from energon_pack.run.load_by_name import load_entry_point
from energon_pack.samples.media.kinds import MEDIA_EXTENSIONS
from energon_pack.samples.settings import ReadSettings
from energon_pack.sources.find import (
    JSON_FILE,
    FileFinder,
    FoundFile,
    Source,
    find_source_of_format,
    json_files,
    table_hint,
)
from energon_pack.sources.jsonl.row_files import (
    RowFileFinder,
    TableFinder,
    find_sample_tables_and_others,
    is_parquet,
    print_unread_tables,
    without_extensions,
    without_ledgers_and_sidecars,
)
from energon_pack.sources.media_files import parse_media_map
from energon_pack.sources.mixture import (
    Entry,
    EntrySettings,
    Mixture,
    check_entries,
    parse_mixture_entries,
    read_entries_of_config,
    read_entry_settings,
    read_yaml_object,
)
from energon_pack.sources.mixture_spellings import entries_in_json, entries_in_yaml
from energon_pack.sources.pack_shard import convert_tars_of_packs
from energon_pack.sources.part_names import read_field_map
from energon_pack.sources.prepared_folder import SplitSelection
from energon_pack.sources.row_shard import RowShard, TableShard
from energon_pack.sources.sample_ratio import TakenRows
from energon_pack.sources.settings import Format, SourceConfig
from energon_pack.sources.shard import JsonlShard, Shard, TarShard
from energon_pack.sources.storage import folder_of, real_path, resolve_source_entry, walk

_MEDIA_FILE = re.compile(rf"(?i)\.({'|'.join(MEDIA_EXTENSIONS)})$")
_LMDB_FILE = re.compile(r"(?i)(\.lmdb|data\.mdb)$")
TAR_FILE = re.compile(r"(?i)\.(tar|tgz|tbz2?|txz|tar\.(gz|bz2|xz|zst|zstd|lz4))$")


def find_source(settings: SourceConfig, path: Any, cwd: str | None = None) -> Source:
    """Find the files of a source, of the format `source.format`, or if that is `auto`, by the names of the files.

    Raises PackError if nothing is there.

    Args:
        path: a path, a list of paths, or the entries of a mixture by name.
        cwd: the folder in which packing was started, for the paths in mixtures of other tools; None: this one.
    """
    if entries := _read_entries(settings, path, cwd or os.getcwd()):
        return _find_mixture(settings, entries, cwd or os.getcwd())
    return _find_plain(settings, path)


def _find_plain(settings: SourceConfig, path: str | Sequence[str]) -> Source:
    """Find the files of a source that is no mixture; errors as `find_source`."""
    listed = [path] if isinstance(path, str) else path
    if settings.format != Format.auto:
        return find_source_of_format(_finder_of(settings), listed)
    of_forms: dict[Format, list[str]] = {}
    stems: set[str] = set()
    for entry in listed:
        looked = find_forms(entry)
        stems |= looked.stems
        for form in looked.forms:
            of_forms.setdefault(form, []).append(entry)
    forms = (_finder_of(replace(settings, format=form.value), stems) for form in of_forms)
    return _join_sources(
        [find_source_of_format(form, named) for form, named in zip(forms, of_forms.values(), strict=True)]
    )


def _finder_of(settings: SourceConfig, stems: Collection[str] | None = None) -> FileFinder:
    """Return the finder of files of `settings.format`; raises PackError if no class reads that format.

    `stems`: paths of tars in the same folders, without their extensions; None: only this one format is looked for.
    """
    if settings.format == Format.wds:
        return TarFinder(settings)
    ours: dict[str, type[RowShard]] = {Format.jsonl: JsonlShard, Format.table: TableShard}
    kind = ours.get(settings.format) or load_entry_point("sources", "source.format", settings.format)
    if not (isinstance(kind, type) and issubclass(kind, RowShard)):
        why = "there is none of that name" if kind is None else f"{kind} is no class that derives from JsonlShard"
        raise PackError(f"source.format={settings.format}: {why}; auto, wds and jsonl are always there")
    return (TableFinder if kind is TableShard else RowFileFinder)(settings, kind, stems)


# --------------------------------------------------------------------------------------------------------- mixtures


def _read_entries(settings: SourceConfig, path: Any, cwd: str) -> list[Entry] | None:
    """Read the entries of a mixture from its file or from the config; None: the path is no mixture."""
    if isinstance(path, Mapping):
        return check_entries("source.path", read_entries_of_config(path))
    path = path[0] if isinstance(path, list) and len(path) == 1 else path
    if not isinstance(path, str):
        return None
    parse_media_map(settings.media_map)  # refuses a wrong one, whatever the source is
    file = os.path.expanduser(path)
    entries: list[Entry] | None = None
    if file.endswith(".json"):
        entries = entries_in_json(file, settings, cwd)
    elif value := read_yaml_object(file):
        is_ours = "mixture" in value
        entries = parse_mixture_entries(file, value) if is_ours else entries_in_yaml(file, value, settings, cwd)
    return entries and check_entries(path, entries)


def _find_mixture(settings: SourceConfig, entries: Sequence[Entry], cwd: str) -> Source:
    """Find the files of all entries; if there are several, ids of samples begin with the name of their entry."""
    parts, entry_of, seen = [], dict[str, int](), dict[str, tuple[str, TakenRows | None]]()
    alone = replace(settings, format=Format.auto.value)
    for number, entry in enumerate(entries):
        own = read_entry_settings(f"mixture: {entry.name}", entry.own, settings.reading)
        reading = _override_reading_settings(replace(alone, **entry.settings), own)
        try:
            is_mixture = _read_entries(reading, entry.path, cwd) is not None
            part = None if is_mixture else _find_plain(reading, entry.path)
        except PackError as error:
            raise PackError(f"mixture: {entry.name}: {error}") from None
        if part is None:
            raise PackError(f"mixture: {entry.name} is a mixture itself: write its entries here")
        if entry.taken is not None and len(part.shards) > 1:
            raise PackError(f"mixture: {entry.name}: {entry.path} has several files: rows are taken of one, name it")
        own = replace(own, taken=entry.taken)
        before = f"{entry.name}/" if len(entries) > 1 else ""
        for shard in part.shards:
            if shard.ratio != 1:
                raise PackError(
                    f"mixture: {entry.name}: {before}{shard.name} has a sample_ratio: name the file with epochs"
                )
            other, taken = seen.setdefault(repr(shard.identity), (entry.name, entry.taken))
            if other != entry.name:
                twice = f"mixture: {shard.path} is in {other} and in {entry.name}"
                if not entry.may_repeat:
                    raise PackError(f"{twice}: one of them may have it")
                subject = "its samples are" if taken == entry.taken else "a row that both take is"
                say(f"{twice}: {subject} packed for both")
        shards = [replace(shard, name=f"{before}{shard.name}", own=own) for shard in part.shards]
        entry_of |= {shard.name: number for shard in shards}
        parts.append(replace(part, shards=shards))
    return replace(_join_sources(parts), mixture=Mixture(tuple(entries), entry_of))


def _override_reading_settings(settings: SourceConfig, entry: EntrySettings) -> SourceConfig:
    """Return the settings, overridden by an entry's own settings for reading records."""
    names = [] if entry.reading is None else [each.name for each in fields(ReadSettings)]
    read = {name: getattr(entry.reading, name) for name in names}
    return replace(settings, **read)


def _join_sources(parts: Sequence[Source]) -> Source:
    """Join sources into one without a mixture; shards keep their names."""
    of_forms = (Counter(part.repeated) for part in parts)  # folders of two forms are walked for each
    return Source(
        shards=sorted((shard for part in parts for shard in part.shards), key=lambda shard: shard.name),
        folders=frozenset().union(*(part.folders for part in parts)),
        num_left_out=sum(part.num_left_out for part in parts),
        stored_folders=frozenset().union(*(part.stored_folders for part in parts)),
        repeated=tuple(reduce(or_, of_forms, Counter[tuple[str, str]]()).elements()),
    )


# ---------------------------------------------------------------------------------------------- the forms of an entry


class FoundFormats(NamedTuple):
    """The formats of an entry of `source.path`, and the tars in its folders."""

    forms: list[Format]
    stems: set[str]  # paths of tars in folders, without their extensions


def find_forms(entry: str) -> FoundFormats:
    """Return the formats of the files of an entry of `source.path`, by their extensions (unknown ones: JSONL)."""
    _, folders, files = resolve_source_entry(entry)
    forms, stems = set(map(_form_of_file, files)), set[str]()
    tables, unread = list[str](), list[str]()
    for folder in folders:
        tars = walk(folder, TAR_FILE)
        stems |= set(map(_tar_stem, tars))
        lines = without_ledgers_and_sidecars((), walk(folder, JsonlShard.names))
        if about := next((file for file in lines if _tar_stem(file) in stems), None):
            raise PackError(
                f"source.path={entry}: {about} has the name of a tar beside it: source=wds reads the tars,"
                " source=jsonl the lines, a list of globs in source.path both"
            )
        forms |= {form for form, present in ((Format.wds, tars), (Format.jsonl, lines)) if present}
        here, unread_here = find_sample_tables_and_others(folder, stems)
        tables, unread = tables + here, unread + unread_here
    has_parquet = any(map(is_parquet, tables)) or Format.table in forms
    if not forms and not has_parquet and any(map(json_files, folders)):
        forms = {Format.jsonl}  # a *.json alone is read, several are named
    if forms and not has_parquet:
        tables, unread = [], unread + tables
    forms |= {Format.table} if tables else set()
    print_unread_tables(entry, unread if forms else ())
    if not forms and (media := next((file for folder in folders for file in walk(folder, _MEDIA_FILE)), None)):
        raise PackError(
            f"source.path={entry}: media as {media}, and nothing that says what to train: a metadata.jsonl beside them"
            ' does, with lines as {"file_name": "a.jpg", "text": …}, or a metadata.csv with these columns'
        )
    if not forms:
        raise PackError(
            f"source.path={entry}: no *.tar, *.jsonl, *.parquet, *.arrow, *.csv or *.tsv there; other forms are not"
            f" read: write lines of JSON of them{_lmdb_advice(folders)}"
        )
    return FoundFormats([form for form in Format if form in forms], stems)


def _lmdb_advice(folders: Sequence[str]) -> str:
    """Return what to do about an LMDB in one of the folders."""
    file = next((each for folder in folders for each in walk(folder, _LMDB_FILE)), None)
    if file is None:
        return ""
    name = "/".join(file.split("/")[-2:])
    return f'; an LMDB is no list of samples: a line names its values, as {{"messages": [], "images": ["{name}::KEY"]}}'


def source_summary(source: Source, num_samples: int | None = None) -> str:
    """Return a line that describes a source: `Parquet, 12 files; media in /data/images; 24,000 samples`.

    `num_samples`: the samples in the whole source; None: not known.
    """
    shards = sorted(source.shards, key=lambda shard: [*Format].index(shard.format))
    parts = [f"{kind}, {amount(num, 'file')}" for kind, num in Counter(shard.called for shard in shards).items()]
    roots = Counter(s.media_root for s in shards if s.media_root and s.media_root != folder_of(s.path))
    parts += [f"media in {root}" for root, _ in roots.most_common(3)]
    return "; ".join([*parts, *([amount(num_samples, "sample")] if num_samples is not None else [])])


def source_format(source: Source) -> Format:
    """Return the format that reads all files of a source; `auto` if there are several formats."""
    formats = {shard.format for shard in source.shards}
    return formats.pop() if len(formats) == 1 else Format.auto


def _form_of_file(file: str) -> Format:
    if TAR_FILE.search(file):
        return Format.wds
    return Format.table if TableShard.names.search(file) else Format.jsonl


def _tar_stem(file: str) -> str:
    return without_extensions(TAR_FILE.sub("", file))


class TarFinder(FileFinder):
    """Finds tars: of samples, or of packs, whose members become the samples."""

    def __init__(self, settings: SourceConfig):
        self._settings, self._selection = settings, SplitSelection(settings.split)
        self._seen_paths = set[str]()
        self._field_map = cache(read_field_map)

    def files_in(self, folder: str) -> list[str]:
        return walk(folder, TAR_FILE)

    def files_of_entry(self, entry: str, folders: Sequence[str], files: Sequence[str]) -> Iterator[FoundFile]:
        if not files:
            has_lines = any(walk(folder, JSON_FILE) for folder in folders)
            other = "; source=jsonl reads JSONL" if has_lines else table_hint(folders)
            raise PackError(f"source.path={entry}: no *.tar there{other}")
        if lines := next(filter(JSON_FILE.search, files), None):
            raise PackError(f"source.path={entry}: {lines} is no tar; source=jsonl reads JSONL")
        for tar, real in zip(files, map(real_path, files), strict=True):
            left_out = self._selection.left_out(tar)
            self.num_left_out += 0 if real in self._seen_paths else left_out.num_samples
            self._seen_paths.add(real)
            if left_out.keys is not None:
                folder = self._selection.prepared_folder(tar)
                field_map = self._field_map(folder) if folder else None
                yield FoundFile(tar, real, TarShard, {"field_map": field_map, "excluded_keys": left_out.keys})
        for folder in folders:
            self._selection.check_complete(folder, files)

    def complete_shards(self, path: Sequence[str], shards: list[Shard]) -> list[Shard]:
        if not shards:
            named, split = ", ".join(path), self._settings.split
            raise PackError(f"source.path={named}: every tar is left out by source.split={split} or by an exclude")
        shards = convert_tars_of_packs(shards)
        if self._settings.map is not None or self._settings.has_renames or self._settings.messages_key:
            return [replace(shard, field_map=None) for shard in shards if isinstance(shard, TarShard)]
        maps = (shard.field_map for shard in shards if isinstance(shard, TarShard))
        if why := next((each.refusal for each in maps if each is not None and each.refusal), None):
            raise PackError(why)
        return shards
