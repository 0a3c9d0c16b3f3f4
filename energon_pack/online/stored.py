"""Samples in files: the shards of a source, read where the index or the lengths say."""

from collections.abc import Sequence

from energon_pack.dataset.sources import Sources
from energon_pack.online.rows import ItemRow
from energon_pack.samples.flavors.base import MemberInput
from energon_pack.samples.settings import ReadSettings
from energon_pack.sources.shard import Shard


class Stored:
    """Measured samples in files; what is open is each process's own."""

    def __init__(self, shards: Sequence[Shard], settings: ReadSettings):
        self._shards, self._settings = list(shards), settings
        self._sources: Sources | None = None

    def member(self, row: ItemRow) -> MemberInput:
        """A sample as it was measured, or a part of one.

        Raises:
            SourceChanged: the shard or a medium is not what was measured.
        """
        if self._sources is None:
            self._sources = Sources({shard.name: shard for shard in self._shards})
        place = row.of_pack("", self._shards[row.shard].name)
        return self._sources.member(place, self._settings, row.checksum)

    def sample_id(self, row: ItemRow) -> str:
        """What it is called in packs and in the ledger."""
        return row.of_pack("", self._shards[row.shard].name).sample_id

    def __reduce__(self) -> tuple[type["Stored"], tuple[list[Shard], ReadSettings]]:
        return Stored, (self._shards, self._settings)
