"""Who drives a run: the term of each driver, one after the other."""

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energon_pack.run.executors.shared.folder import RunFolder, claim, names_in, read_object, refresh, remove, write

_ABOUT = ".json"


@dataclass(frozen=True)
class Term:
    """The time in which one process drives."""

    folder: Path
    number: int
    #: of the driver: `beats.here`, what it runs, and by which launch
    about: Mapping[str, Any]

    @property
    def run(self) -> RunFolder:
        return RunFolder(self.folder / "runs" / f"{self.number:06d}-{self.about.get('id')}")

    @property
    def driver(self) -> str:
        """Who drives, as one says it."""
        return f"{self.about.get('host')} (process {self.about.get('pid')})"

    @property
    def note(self) -> Path:
        """What its driver is about to publish, for the next one; that of a term that came to an end counts no more."""
        return self.folder / "publishing"

    @property
    def beat(self) -> Path:
        return self._path(".beat")

    def runs_before(self) -> list[RunFolder]:
        """Folders of earlier terms; never one of a later: this driver may have been away."""
        names = names_in(self.folder / "runs")
        return [RunFolder(self.folder / "runs" / name) for name in names if int(name.partition("-")[0]) < self.number]

    def end(self, outcome: Mapping[str, Any]) -> None:
        """Say what came of it."""
        write(self._path(".end"), json.dumps(outcome).encode())

    @property
    def outcome(self) -> dict[str, Any] | None:
        """What came of it; None: it has not ended, as far as its driver could say."""
        return read_object(self._path(".end"))

    @property
    def has_ended(self) -> bool:
        """Whether there is an outcome, even if it can't be read yet: a folder is seen anew before a file in it."""
        return self._path(".end").name in names_in(self.folder / "terms")

    def _path(self, ending: str) -> Path:
        return _path(self.folder, self.number, ending)


def latest_term(folder: Path) -> Term | None:
    """The term that counts; None: nobody ever drove."""
    numbers = [int(name.removesuffix(_ABOUT)) for name in names_in(folder / "terms") if name.endswith(_ABOUT)]
    if not numbers:
        return None
    return Term(folder, max(numbers), read_object(_path(folder, max(numbers), _ABOUT)) or {})


def claim_term(folder: Path, after: Term | None, about: Mapping[str, Any]) -> Term | None:
    """Begin the next term; None: another process was faster.

    Args:
        about: the driver.
    """
    number, about = 1 + (after.number if after else 0), {"id": uuid.uuid4().hex[:12], **about}
    (folder / "terms").mkdir(parents=True, exist_ok=True)
    refresh(folder / "terms")
    if (latest := latest_term(folder)) and latest.number >= number:
        return None
    if not claim(_path(folder, number, _ABOUT), json.dumps(about).encode()):
        return None
    term = Term(folder, number, about)
    term.run.make()
    if after is not None:
        remove(after.beat)  # who works for it then looks who drives
    return term


def _path(folder: Path, number: int, ending: str) -> Path:
    return folder / "terms" / f"{number:06d}{ending}"
