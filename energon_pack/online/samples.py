"""Samples by number, for packs that are made while loading, wherever the samples are.

number ──look──► the conversation and its media by their headers: enough to count tokens
       ──member──► the same with its images and videos: what training encodes

In memory they are `online.given.Given`; in files, `InFiles`. Samples that are measured keep their rows in a file.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Generic, Protocol

from energon_pack.dataset.files import PlanRow
from energon_pack.dataset.sources import Sources
from energon_pack.online.given import Given
from energon_pack.online.rows import IndexedRow, MeasuredItem, Row, Rows
from energon_pack.samples.member import MemberInput
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Reason, Skip
from energon_pack.sources.reader import Reader
from energon_pack.sources.sample import ReadSample, read_sample
from energon_pack.sources.shard import Shard
from energon_pack.templates.sample import Sample


class Members(Protocol):
    """Samples that training can read in any order."""

    def sample_id(self, number: int) -> str:
        """Return a sample's id, for packs, errors and the ledger."""

    def member(self, number: int) -> MemberInput:
        """Return a sample with its media, which are decoded when they are used.

        Raises:
            Skip: it can't be packed.
            PackError: its file changed.
        """


class Samples(Members, Protocol):
    """Samples that nobody has measured, so that they are looked at first."""

    def __len__(self) -> int: ...

    def look(self, number: int) -> Sample:
        """Return a sample with only the headers of its media read.

        Raises:
            Skip: it can't be packed.
        """


class InFiles(Generic[Row]):
    """Samples in the files of a source; each process opens its own files.

    Args:
        shards: the source's shards; rows have an index into this list.
        settings: the settings by which samples are read.
    """

    def __init__(self, shards: Sequence[Shard], settings: ReadSettings, rows: Rows[Row]):
        self._shards, self._settings, self._rows = list(shards), settings, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __reduce__(self) -> Any:
        return type(self), (self._shards, self._settings, self._rows)


class IndexedInFiles(InFiles[IndexedRow]):
    """Samples of which only the place is known."""

    def sample_id(self, number: int) -> str:
        row = self._rows[number]
        return self._shards[row.shard].sample_id(row.key)

    def look(self, number: int) -> Sample:
        read, _ = self._read(number)
        return Sample(read.timed, read.media, read.tools, read.options)

    def member(self, number: int) -> MemberInput:
        read, shard = self._read(number)
        return read.member(self.sample_id(number), [self._reader.read(shard, part) for part in read.parts])

    def _read(self, number: int) -> tuple[ReadSample, Shard]:
        row = self._rows[number]
        if row.reason is not None:
            raise Skip(Reason(row.reason), row.detail or "")
        shard = self._shards[row.shard]
        return read_sample(self._reader, shard, row, self._settings), shard

    @cached_property
    def _reader(self) -> Reader:
        return Reader()


class MeasuredInFiles(InFiles[MeasuredItem]):
    """Measured samples, or parts of some; a file that changed since is refused."""

    def sample_id(self, number: int) -> str:
        return self._place(self._rows[number]).sample_id

    def member(self, number: int) -> MemberInput:
        row = self._rows[number]
        return self._sources.member(self._place(row), self._settings, row.checksum)

    def _place(self, row: MeasuredItem) -> PlanRow:
        return row.in_plan(self._shards[row.shard].name)

    @cached_property
    def _sources(self) -> Sources:
        return Sources({shard.name: shard for shard in self._shards})


class MeasuredGiven:
    """Measured samples of a user's dataset; a row's key is the number of its item."""

    def __init__(self, given: Given, rows: Rows[MeasuredItem]):
        self._given, self._rows = given, rows

    def sample_id(self, number: int) -> str:
        return self._given.sample_id(int(self._rows[number].key))

    def member(self, number: int) -> MemberInput:
        row = self._rows[number]
        return self._given.member(int(row.key), row.token_len)
