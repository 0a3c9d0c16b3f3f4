"""A small object beside a dataset on an object store, which names the run that writes the dataset.

PREFIX/.staging/NAME/identity     {"identity": …, "run": …, "state": …}

Before a run changes the dataset, it has to win a conditional write of the marker, and it reads the marker before each
further request. One gap remains: a run that is paused between reading the marker and its request still sends that one
request when it resumes. If the other run has the same identity, a shard uploaded then has the same bytes.
"""

import json
import uuid
from dataclasses import asdict, dataclass, replace
from enum import Enum

from energon_pack.dataset.destination import another_run
from energon_pack.run import stores
from energon_pack.run.address import parent


class RunState(str, Enum):
    """How far a run has come."""

    writing = "writing"
    #: the shards belong to another run, or are wrong
    discarded = "discarded"
    publishing = "publishing"


@dataclass(frozen=True)
class Note:
    """The content of a marker; each run writes each of its notes once, and no two runs write the same."""

    identity: str  # hash of everything that the bytes of the shards depend on
    run: str
    state: RunState

    @classmethod
    def new(cls, identity: str, state: RunState) -> "Note":
        """Make the first note of a run."""
        return cls(identity, uuid.uuid4().hex, state)

    def trusts(self, identity: str) -> bool:
        """Say whether the existing shards are from a run of this identity."""
        return self.identity == identity and self.state is not RunState.discarded


class Marker:
    """The marker of one dataset."""

    def __init__(self, dataset: str):
        self._dataset = dataset
        self.folder = f"{parent(dataset)}/.staging/{dataset.rpartition('/')[2]}"
        self._address = f"{self.folder}/identity"

    def read(self) -> tuple[Note | None, str | None]:
        """Return the note, and its version for `win`; None: no run is at work, and none was stopped."""
        try:
            data, version = stores.read_with_version(self._address)
        except FileNotFoundError:
            return None, None
        try:
            fields = json.loads(data)
            return Note(fields["identity"], fields["run"], RunState(fields["state"])), version
        except (ValueError, KeyError, TypeError):  # written by another version of this package
            return Note("", "", RunState.discarded), version

    def win(self, note: Note, version: str | None) -> Note:
        """Replace the note that was read by this one; raises PackError if another run was faster."""
        if not stores.put_if(self._address, json.dumps(asdict(note)).encode(), version):
            raise another_run(self._dataset)
        return note

    def move(self, note: Note, state: RunState) -> Note:
        """Win the next state of a run; raises PackError if another run took over."""
        now, version = self.read()
        if now != note:
            raise another_run(self._dataset)
        return self.win(replace(note, state=state), version)

    def refuse_lost(self, note: Note) -> None:
        """Raise PackError if another run took over from the run that wrote this note."""
        if self.read()[0] != note:
            raise another_run(self._dataset)

    def refuse_other(self, identity: str | None) -> None:
        """Raise PackError if no run of this identity is at work, or its shards were discarded."""
        note, _ = self.read()
        if note is None or identity is None or not note.trusts(identity):
            raise another_run(self._dataset)

    def leave(self, note: Note) -> None:
        """Remove the marker and everything beside it, unless the next run is already at work."""
        names = stores.entries(self.folder)
        if self.read()[0] == note:
            stores.delete(names)
