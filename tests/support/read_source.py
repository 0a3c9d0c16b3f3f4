"""Reads a source as packing does, without a model."""

from pathlib import Path
from typing import Any

from energon_pack.lengths.index import refuse_damaged_sources
from energon_pack.samples.settings import PreferenceTake, ReadSettings
from energon_pack.samples.skip import Reason, Skip
from energon_pack.sources.reader import SourceReader
from energon_pack.sources.sample import read_sample
from energon_pack.sources.settings import SourceConfig
from energon_pack.sources.source_file import IndexRow, rows_of
from energon_pack.sources.source_path import find_source
from energon_pack.sources.wds import index_metadata

#: the texts of a sample in the order of its turns, and the bytes of its media; or why it is left out
Read = tuple[list[str], list[bytes]] | str


def read(path: Path, take: PreferenceTake | None = None, **settings: Any) -> dict[str, Read]:
    """Every sample of a source, as packing reads it, by its key; `take`: of preference data."""
    found: dict[str, Read] = {}
    with SourceReader() as reader:
        for shard in find_source(SourceConfig(path=str(path), **settings), str(path)).shards:
            table = shard.index()
            refuse_damaged_sources([(shard, index_metadata(table))])
            for row in rows_of(table, IndexRow):
                assert row.key not in found
                try:
                    if row.reason is not None:
                        raise Skip(Reason(row.reason), row.detail or "")
                    sample = read_sample(reader, shard, row, ReadSettings(take=take))
                except Skip as skip:
                    found[row.key] = str(skip)
                    continue
                texts = [message["content"] for message in sample.timed_messages]
                found[row.key] = texts, [reader.read(shard, part) for part in sample.parts]
    return found
