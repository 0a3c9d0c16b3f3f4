"""Find the JSONL files of a source: folders, files, globs, and meta files that list files with their format."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energon_pack.errors import PackError
from energon_pack.run.by_name import entry_point
from energon_pack.run.console import say
from energon_pack.run.stores import bucket_of, is_address, on_this_machine
from energon_pack.sources.compressed import COMPRESSED_LINES, compressed_error, plain_copies, plain_name
from energon_pack.sources.find import but_parquet, local_folders, names_of
from energon_pack.sources.inside import media_in
from energon_pack.sources.jsonl.dialects import Lines
from energon_pack.sources.jsonl.meta import entries_here, read_blend, read_meta
from energon_pack.sources.lmdb_shard import LmdbShard
from energon_pack.sources.mixture import Entry as MixtureEntry
from energon_pack.sources.mixture import checked, stem_of, with_own_names
from energon_pack.sources.settings import Format, SourceConfig
from energon_pack.sources.shard import JsonlShard, Source, shard_of
from energon_pack.sources.splits import of_split
from energon_pack.sources.storage import absolute, expand, folder_of, is_file, path_in, real_path, walk
from energon_pack.sources.table_shard import TableShard

_ALPACA = {
    "prompt": "instruction",
    "query": "input",
    "response": "output",
    "system": "system",
    "history": "history",
}


_KINDS = {Format.jsonl.value: JsonlShard, Format.table.value: TableShard, Format.lmdb.value: LmdbShard}


@dataclass(frozen=True)
class _Entry:
    path: str
    lines: Lines


def kind_of_lines(format: str) -> type[JsonlShard] | None:
    """Return the class that reads the lines of a source of this format; None: the source is tars.

    Raises:
        PackError: there is no such format, or the format of an installed package does not read lines.
    """
    if format in list(Format):
        return _KINDS.get(format)
    kind = entry_point("sources", "source.format", format)
    if not (isinstance(kind, type) and issubclass(kind, JsonlShard)):
        there = "there is none of that name" if kind is None else f"{kind} is no class that derives from JsonlShard"
        raise PackError(f"source.format={format}: {there}; auto, wds and jsonl are always there")
    return kind


def find_lines(
    path: str | Sequence[str],
    media_root: str | None = None,
    remote_media: bool = False,
    kind: type[JsonlShard] = JsonlShard,
    split: str | None = None,
    copies: Path | None = None,
    datasets: Sequence[str] | None = None,
    chosen: Callable[[Sequence[str]], list[str]] = list,
) -> Source:
    """Find the files of a source of lines or rows: JSONL, tables, or another kind that a plugin adds.

    Args:
        path: a folder (searched recursively for *.jsonl), a file, a glob, a meta file, or a list of these.
        media_root: the folder that paths of media are relative to; None: the folder of their file, or a meta file's
            `media_dir`.
        remote_media: whether lines and meta files may name media on other stores than `media_root`'s and their own.
        split: the split of folders of tables, as in `of_split`.
        copies: where uncompressed copies of compressed files are kept; None: compressed files are refused.
        datasets: the entries of meta files to take; None: all whose files are here.
        chosen: chooses the files of a folder.

    Raises:
        PackError: nothing is there, a file comes twice, or a meta file names a missing file; or like `of_split`.
    """
    if media_root is not None and not _has_media(os.path.expanduser(media_root)):
        raise PackError(f"source.media_root={media_root}: no such folder or zip archive")
    wanted = None if datasets is None else _Wanted(datasets)
    roots: list[str] = []
    folders: list[str] = []
    found: dict[str, _Entry] = {}  # by real path
    for entry in [path] if isinstance(path, str) else path:
        root, entry_folders, files = expand(os.path.expanduser(entry))
        roots.append(root)
        folders += entry_folders
        for folder in entry_folders:
            found_there = chosen(walk(folder, kind.names))
            files += of_split(folder, found_there, split) if kind.has_splits else found_there
        if not files:
            if kind.names is not JsonlShard.names:
                raise PackError(f"source.path={entry}: no file there is called {kind.names.pattern}")
            if parquet := but_parquet(entry_folders):
                raise PackError(f"source.path={entry}: no *.jsonl there{parquet}")
            raise PackError(f"source.path={entry}: no *.jsonl there; name *.json files by themselves or by a glob")
        for file in files:
            for item in _entries(file, media_root, remote_media, wanted):
                real = real_path(item.path)
                if found.setdefault(real, item).lines != item.lines:
                    raise PackError(f"source.path={path}: {item.path} is there twice, to be read in two ways")
    if wanted is not None:
        wanted.check()
    paths = [item.path for item in found.values()]
    compressed = list(filter(COMPRESSED_LINES.search, paths))
    if compressed and copies is None:
        raise compressed_error(compressed[0], len(compressed))
    plain = plain_copies(compressed, copies) if copies else {}
    called = names_of(roots, [plain_name(path) if path in plain else path for path in paths])
    shards = [
        shard_of(name, plain.get(item.path, item.path), item.lines, kind)
        for name, item in zip(called, found.values(), strict=True)
    ]
    return Source(
        shards=sorted(shards, key=lambda shard: shard.name),
        folders=local_folders(folders),
        stored=frozenset(folders) - on_this_machine(folders),
    )


def _has_media(root: str) -> bool:
    return is_address(root) or os.path.isdir(root) or (media_in(root, "") is not None and os.path.isfile(root))


class _Wanted:
    """The requested entries of meta files, and the entries that exist."""

    def __init__(self, names: Sequence[str]):
        self._names, self._there = names, set[str]()

    def of(self, meta: Mapping[str, Any]) -> dict[str, Any]:
        self._there |= meta.keys()
        return {name: value for name, value in meta.items() if name in self._names}

    def check(self) -> None:
        """Raise PackError if a requested entry is in no meta file."""
        if missing := [name for name in self._names if name not in self._there]:
            there = ", ".join(sorted(self._there)) or "no meta file is in source.path"
            raise PackError(f"source.datasets: no {missing[0]} among {there}")


def _entries(path: str, media_root: str | None, remote_media: bool, wanted: _Wanted | None) -> Iterator[_Entry]:
    """Yield the file itself, or the files that a meta file lists."""
    meta = read_meta(path)
    if meta is not None and wanted is not None:
        meta = wanted.of(meta)
    elif meta is not None:
        meta, elsewhere = entries_here(meta)
        if elsewhere:
            say(f"{path}: left out, for their files are elsewhere: {', '.join(elsewhere)}")
    folder = folder_of(absolute(path))
    if meta is None:
        root = absolute(os.path.expanduser(media_root or folder))
        yield _Entry(absolute(path), Lines(root, remote_media=remote_media))
        return
    for name, value in sorted(meta.items()):
        where = f"{path}: {name}"
        file_name = value.get("file_name")
        if not isinstance(file_name, str):
            raise PackError(
                f"{where} has no file_name: only files that are here are read; source.datasets names others"
            )
        file = _in(folder, file_name)
        _refuse_remote(where, file, folder, remote_media)
        if not is_file(file):
            raise PackError(f"{where}: no such file {file}")
        columns = _names(value.get("columns"), f"{where}: columns")
        if value.get("formatting") == "alpaca" or columns.keys() & {"prompt", "response"}:
            columns = _ALPACA | columns
        media_dir = value.get("media_dir") or ""
        if not isinstance(media_dir, str):
            raise PackError(f"{where}: media_dir is {media_dir!r}, not a folder")
        if media_root is None:
            _refuse_remote(where, media_dir, folder, remote_media)
        media_dir = media_root or _in(folder, media_dir)
        ratio = ratio_of(where, value)
        yield _Entry(
            absolute(file),
            Lines(
                absolute(os.path.expanduser(media_dir)),
                tuple(sorted(columns.items())),
                tuple(sorted(_names(value.get("tags"), f"{where}: tags").items())),
                ratio,
                remote_media,
            ),
        )


def read_meta_mixture(path: Any, settings: SourceConfig) -> list[MixtureEntry] | None:
    """Read InternVL's meta file or LLaVA-OneVision's YAML as a mixture with epochs; None: the path is neither.

    Raises:
        PackError: an entry makes no sense, or `source.datasets` names none.
    """
    meta = read_blend(path) if isinstance(path, str) else None
    if meta is None:
        return None
    if settings.datasets is not None:
        wanted = _Wanted(settings.datasets)
        meta = wanted.of(meta)
        wanted.check()
    folder, entries = folder_of(absolute(path)), list[MixtureEntry]()
    for name, value in sorted(meta.items()):
        where, file = f"{path}: {name}", _in(folder, str(value["file_name"]))
        _refuse_remote(where, file, folder, settings.remote_media)
        root = settings.media_root or _in(folder, str(value["media_dir"]))
        _refuse_remote(where, root, folder, settings.remote_media or settings.media_root is not None)
        own: dict[str, Any] = {"datasets": None}
        if _has_media(root):  # otherwise media are searched around the file
            own["media_root"] = root
        called = stem_of(name) if name.endswith((".json", ".jsonl")) else name.replace("/", "_").lstrip(".")
        entries.append(MixtureEntry(called or "source", file, None, ratio_of(where, value), None, own))
    return checked(path, with_own_names(entries))


def ratio_of(where: str, value: Mapping[str, Any]) -> float:
    """Return how often a meta file draws each sample of an entry; raises PackError if that is no number."""
    ratio = value.get("sample_ratio", 1.0)
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 <= ratio <= 1000:
        raise PackError(f"{where}: sample_ratio is {ratio!r}, not a number of draws of each sample")
    return float(ratio)


def _refuse_remote(where: str, named: str, folder: str, remote_media: bool) -> None:
    """Raise PackError if a meta file names another store than its own, and `source.remote_media` is off."""
    if not remote_media and bucket_of(named) not in ("", bucket_of(folder)):
        raise PackError(
            f"{where}: {named} is on an object store that source.path does not name; source.remote_media=true"
            " reads it with your keys"
        )


def _in(folder: str, name: str) -> str:
    """Return the path of a file that a meta file names."""
    return path_in(folder, os.path.expanduser(name))


def _names(value: Any, where: str) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value.values()):
        raise PackError(f"{where} is {str(value)[:80]}, not names by name")
    return value
