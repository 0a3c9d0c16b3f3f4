"""Find the tars of a source, without those that Energon's split or excludes leave out."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

from energon_pack.errors import PackError
from energon_pack.sources.field_map import read_field_map
from energon_pack.sources.find import LINES, Form, Leaf, but_parquet
from energon_pack.sources.packs import with_members
from energon_pack.sources.prepared import Selection
from energon_pack.sources.settings import SourceConfig
from energon_pack.sources.shard import Shard, TarShard
from energon_pack.sources.storage import real_path, walk

TARS = re.compile(r"(?i)\.(tar|tgz|tbz2?|txz|tar\.(gz|bz2|xz|zst|zstd|lz4))$")


class Tars(Form):
    """Tars of samples, or of packs, whose members then are the samples."""

    def __init__(self, settings: SourceConfig):
        self._settings, self._selection = settings, Selection(settings.split)
        self._seen = set[str]()
        self._field_map = cache(read_field_map)

    def in_folder(self, folder: str) -> list[str]:
        return walk(folder, TARS)

    def leaves(self, entry: str, folders: Sequence[str], files: Sequence[str]) -> Iterator[Leaf]:
        if not files:
            has_lines = any(walk(folder, LINES) for folder in folders)
            other = "; source=jsonl reads JSONL" if has_lines else but_parquet(folders)
            raise PackError(f"source.path={entry}: no *.tar there{other}")
        if lines := next(filter(LINES.search, files), None):
            raise PackError(f"source.path={entry}: {lines} is no tar; source=jsonl reads JSONL")
        for tar, real in zip(files, map(real_path, files), strict=True):
            if real not in self._seen:
                self._seen.add(real)
                left_out = self._selection.left_out(tar)
                self.num_left_out += left_out.num_samples
                if left_out.keys is not None:
                    folder = self._selection.prepared_folder(tar)
                    field_map = self._field_map(folder) if folder else None
                    yield Leaf(tar, real, TarShard, {"field_map": field_map, "excluded": left_out.keys})
        for folder in folders:
            self._selection.check_complete(folder, files)

    def finished(self, path: Sequence[str], shards: list[Shard]) -> list[Shard]:
        if not shards:
            named, split = ", ".join(path), self._settings.split
            raise PackError(f"source.path={named}: every tar is left out by source.split={split} or by an exclude")
        shards = with_members(shards)
        if self._settings.map is not None or self._settings.renames or self._settings.messages_key:
            return [replace(shard, field_map=None) for shard in shards if isinstance(shard, TarShard)]
        maps = (shard.field_map for shard in shards if isinstance(shard, TarShard))
        if why := next((each.refusal for each in maps if each is not None and each.refusal), None):
            raise PackError(why)
        return shards
