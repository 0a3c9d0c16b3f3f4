"""How far a run of many machines is, for who has no part in it."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energon_pack.run.executors.shared.beats import BEAT_SECONDS
from energon_pack.run.executors.shared.folder import read, read_object, refresh
from energon_pack.run.executors.shared.terms import Term, latest_term
from energon_pack.run.executors.shared.together import LEFT

SUBMITTED = "submitted"
_BEATS_TO_SEE = 2.5


@dataclass(frozen=True)
class Status:
    """The last term of a run, as it is now."""

    term: Term
    outcome: Mapping[str, Any] | None
    #: of the driver: its nodes and how far it is
    told: Mapping[str, Any]

    @property
    def was_left(self) -> bool:
        """Whether its driver was interrupted: another may go on."""
        return bool(self.outcome and self.outcome.get(LEFT))

    @property
    def line(self) -> str:
        nodes = self.told.get("nodes", {})
        workers = sum(node["num_workers"] for node in nodes.values())
        machines = f"{len(nodes)} machine{'s' * (len(nodes) != 1)} with {workers} processes"
        return ", ".join(filter(None, [self.told.get("line"), machines, f"{self.term.driver} drives"]))


def status_of(folder: Path, launch: str | None = None) -> Status | None:
    """The status of the run of a folder; None: none was begun.

    Args:
        launch: only of a run of that launch.
    """
    term = latest_term(folder)
    if term is None or (launch is not None and term.about.get("launch") != launch):
        return None
    return Status(term, term.outcome, read_object(term.run.status) or {})


def status_lines(folder: Path) -> tuple[list[str], int]:
    """What to say of the run of a folder, and an exit code: 0 where it is done, or at work."""
    status, submitted = status_of(folder), read_object(folder / SUBMITTED)
    if submitted is not None and (status is None or status.term.number < submitted["first"]):
        return [f"submitted as Slurm's job {submitted['job']}, of which no task has begun"], 1
    if status is None:
        return ["nobody has begun"], 1
    if status.outcome is None:
        signs = (status.term.run.status, status.term.beat)
        before = [*map(read, signs)]
        time.sleep(_BEATS_TO_SEE * BEAT_SECONDS)
        for path in signs:
            refresh(path.parent)
        now, status = [*map(read, signs)], status_of(folder) or status
        if now == before and status.outcome is None:
            return [f"{status.term.driver} drove, and gives no sign of life: the next one that comes goes on"], 1
    if status.outcome is None:
        nodes = sorted(status.told.get("nodes", {}).items())
        return [
            status.line,
            *(f"  {name}: {node['num_workers']} processes, {node['jobs']} jobs" for name, node in nodes),
        ], 0
    if status.was_left:
        return [f"{status.term.driver} was interrupted: the next one that comes goes on"], 1
    code = int(status.outcome.get("exit_code", 1))
    return [
        f"done, by {status.term.driver}" if code == 0 else f"{status.outcome.get('text')} (on {status.term.driver})"
    ], code
