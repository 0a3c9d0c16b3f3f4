"""Check that `.nv-meta/index.sqlite` gives the places of the packs and their parts, as Energon queries it."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any
from urllib.parse import quote

from energon_pack.dataset.folder import DatasetFolder
from energon_pack.dataset.pack_files import packs_in
from energon_pack.errors import short
from energon_pack.run.files import META_FOLDER
from energon_pack.sources.tar import TarScan

_SAMPLES = "SELECT sample_key, sample_index, byte_offset, byte_size FROM samples WHERE tar_file_id = ? ORDER BY 2"
_PARTS = (
    "SELECT sample_index, part_name, content_byte_offset, content_byte_size FROM sample_parts WHERE tar_file_id = ?"
    " ORDER BY 1, 3"
)
_SHARDS = "SELECT tar_file_id FROM samples UNION SELECT tar_file_id FROM sample_parts"


INDEX = "index.sqlite"


def sqlite(folder: DatasetFolder, shards: Sequence[str]) -> Iterator[str]:
    """Yield what is wrong with an index of these shards."""
    try:
        with (
            folder.on_this_machine(f"{META_FOLDER}/{INDEX}") as path,
            closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as index,
        ):
            for number, shard in enumerate(shards):
                yield from _shard(index, number, folder, shard)
            more = sorted({row[0] for row in index.execute(_SHARDS)} - set(range(len(shards))), key=str)
            yield from (f"{INDEX} has packs of a shard that is not there: {short(number)}" for number in more)
    except (OSError, sqlite3.Error) as error:
        yield f"{INDEX} can't be read: {error}"


def _shard(index: sqlite3.Connection, number: int, folder: DatasetFolder, shard: str) -> Iterator[str]:
    with folder.open(shard) as file:
        packs = list(packs_in(TarScan(file)))
    samples = [(pack.key, place, pack.start, pack.end - pack.start) for place, pack in enumerate(packs)]
    parts = [(place, *part) for place, pack in enumerate(packs) for part in pack.parts]
    for what, wanted, query in (("packs", samples, _SAMPLES), ("parts", parts, _PARTS)):
        found: list[Any] = index.execute(query, (number,)).fetchall()
        if len(found) != len(wanted):
            yield f"{INDEX} has {len(found)} {what} of {shard}, there are {len(wanted)}"
        elif found != wanted:
            ours, theirs = next(pair for pair in zip(found, wanted, strict=True) if pair[0] != pair[1])
            yield f"{INDEX} has {short(ours)} of {shard}, there is {short(theirs)}"
