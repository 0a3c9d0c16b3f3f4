"""Find the files of lines or rows of a source: JSONL, tables, LMDBs, and what meta files list."""

import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from energon_pack.errors import PackError
from energon_pack.samples.settings import ReadSettings
from energon_pack.sources.find import Form, Leaf, but_parquet
from energon_pack.sources.jsonl.dialects import Lines
from energon_pack.sources.jsonl.meta import Wanted, files_in, has_media
from energon_pack.sources.media_root import find_media_root
from energon_pack.sources.settings import SourceConfig
from energon_pack.sources.shard import JsonlShard, Shard
from energon_pack.sources.splits import of_split
from energon_pack.sources.storage import folder_of, real_path, walk

#: if there are such files, a CSV may be anything
BINARY_TABLES = re.compile(r"(?i)\.(parquet|arrow)$")
_LEDGER = "skipped.jsonl"  # the ledger that packing and converting write beside their output


class LineFiles(Form):
    """Files of lines: JSONL, LMDBs, and what a class of another package reads.

    Args:
        stems: paths of tars without their extension: files of these names are about the tars; None: all are read.
    """

    def __init__(self, settings: SourceConfig, kind: type[JsonlShard], stems: Collection[str] | None = None):
        root = settings.media_root
        if root is not None and not has_media(os.path.expanduser(root)):
            raise PackError(f"source.media_root={root}: no such folder or zip archive")
        self._settings, self._kind, self._stems = settings, kind, stems
        self._wanted = Wanted(settings.datasets)
        self._lines = dict[str, Lines]()  # by real path

    def in_folder(self, folder: str) -> list[str]:
        files = walk(folder, self._kind.names)
        return files if self._stems is None else of_samples(self._stems, files)

    def leaves(self, entry: str, folders: Sequence[str], files: Sequence[str]) -> Iterator[Leaf]:
        if not files and self._kind.names is not JsonlShard.names:
            raise PackError(f"source.path={entry}: no file there is called {self._kind.names.pattern}")
        if not files:
            advice = but_parquet(folders) or "; name *.json files by themselves or by a glob"
            raise PackError(f"source.path={entry}: no *.jsonl there{advice}")
        for file in files:
            for listed, lines in files_in(file, self._settings, self._wanted):
                real = real_path(listed)
                if self._lines.setdefault(real, lines) != lines:
                    raise PackError(f"source.path={entry}: {listed} is there twice, to be read in two ways")
                yield Leaf(listed, real, self._kind, {"lines": lines})

    def finished(self, path: Sequence[str], shards: list[Shard]) -> list[Shard]:
        self._wanted.check()
        if self._settings.media_root is not None:
            return shards
        return [_with_media_root(shard, self._settings) for shard in shards]


class TableFiles(LineFiles):
    """Files of tables; those of a folder may be of several splits."""

    def in_folder(self, folder: str) -> list[str]:
        files = super().in_folder(folder)
        if self._stems is not None:  # beside Parquet and Arrow, a CSV may be anything
            files = list(filter(BINARY_TABLES.search, files)) or files
        return of_split(folder, files, self._settings.split)


def of_samples(stems: Collection[str], files: Sequence[str]) -> list[str]:
    """Leave out ledgers, and the tables that img2dataset writes beside its tars."""
    return [file for file in files if not file.endswith(_LEDGER) and stem(file) not in stems]


def stem(file: str) -> str:
    """Return the path of a file of lines without its extensions."""
    return re.sub(r"(?i)\.(parquet|jsonl(\.\w+)?)$", "", file)


def _with_media_root(shard: Shard, settings: ReadSettings) -> Shard:
    """Return a file of lines, with the folder of its media if that is not its own."""
    if not isinstance(shard, JsonlShard) or shard.media_root != folder_of(shard.path):
        return shard  # a meta file names it
    root = find_media_root(shard, settings)
    return shard if root is None else replace(shard, lines=replace(shard.lines, media_root=root))
