"""Read measured samples from the shards of a source."""

from collections.abc import Sequence

from energon_pack.dataset.sources import Sources
from energon_pack.online.rows import ItemRow
from energon_pack.samples.member import MemberInput
from energon_pack.samples.settings import ReadSettings
from energon_pack.sources.shard import Shard


class Stored:
    """Measured samples in files; each process opens its own files."""

    def __init__(self, shards: Sequence[Shard], settings: ReadSettings):
        self._shards, self._settings = list(shards), settings
        self._sources: Sources | None = None

    def member(self, row: ItemRow) -> MemberInput:
        """Return a measured sample, or a part of one, with its media.

        Raises:
            SourceChanged: the shard or a medium changed since it was measured.
        """
        if self._sources is None:
            self._sources = Sources({shard.name: shard for shard in self._shards})
        place = row.of_pack("", self._shards[row.shard].name)
        return self._sources.member(place, self._settings, row.checksum)

    def sample_id(self, row: ItemRow) -> str:
        """Return the id that packs and the ledger use."""
        return row.of_pack("", self._shards[row.shard].name).sample_id

    def __reduce__(self) -> tuple[type["Stored"], tuple[list[Shard], ReadSettings]]:
        return Stored, (self._shards, self._settings)
