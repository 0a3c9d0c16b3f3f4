"""Find any pack of a dataset by its number or its key, without reading the others.

number ──counts of the shards──► shard ──.tar.idx──► the pack's bytes ──► Pack
key    ──its own number, or the headers of every shard──► the same
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from energon_pack.dataset.folder import DatasetFolder
from energon_pack.dataset.pack_files import packs_in
from energon_pack.dataset.pack_json import ParsedPack, parse_pack, shard_with_referenced_media
from energon_pack.dataset.pack_parts import PackPartReader
from energon_pack.errors import PackError
from energon_pack.samples.bytes import Bytes
from energon_pack.samples.flavors.base import PackedFlavor
from energon_pack.sources.tar import TarScan

_PACK_KEY = re.compile(r"[0-9a-f]{8}_(\d{8,})")  # a key of this package's packs, with its number


@dataclass(frozen=True)
class LocatedPack:
    """A pack that was looked up: its number, its shard, and the file from which its parts are read."""

    number: int  # its place in the order of the plan
    shard: str
    file: Bytes  # its shard, or only the bytes of this pack; its parts' places count in these
    pack: ParsedPack
    defects: list[str]  # of the pack's JSON


class PackLookup(PackPartReader):
    """Finds any pack of a dataset by its number in the order of the plan, or by its key, whichever tool wrote it."""

    def __init__(self, folder: DatasetFolder, flavor: PackedFlavor, shards: DatasetFolder | None = None):
        """List the shards.

        Args:
            flavor: of this package's packs; None: another tool wrote them.
        """
        super().__init__(folder, shards)
        self._flavor = flavor

    def number_of(self, key: str) -> int | None:
        """Return the number of the pack with this key; None: there is none. For another tool's keys, all are read."""
        match = _PACK_KEY.fullmatch(key)
        number = int(match[1]) if match else len(self)
        if number < len(self) and self[number].pack.files.key == key:  # else the key is another dataset's
            return number
        keys = (files.key for name in self.shard_counts for files in packs_in(TarScan(self._open_shard(name))))
        return next((place for place, own_key in enumerate(keys) if own_key == key), None)

    def __getitem__(self, number: int) -> LocatedPack:
        """Read the pack with this number; raises PackError if there is none, or its shard can't be read."""
        name, file, files = self._find(number)
        part = next((part for part in files.parts if part.name == "json" and part.size >= 0), None)
        raw = None if part is None else file.read(part.offset, part.size)
        pack, defects = parse_pack(files, raw, self._flavor)
        return LocatedPack(number, name, shard_with_referenced_media(file, pack, self.media_reader), pack, defects)

    def all(self) -> Iterator[LocatedPack]:
        """Yield all packs in the order of the plan; after one that can't be read, the rest of its shard is left out."""
        number = 0
        for count in self.shard_counts.values():
            with suppress(PackError):
                yield from (self[i] for i in range(number, number + count))
            number += count
