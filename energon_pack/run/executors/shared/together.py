"""The same command on many machines: one process drives, the others work, and all come to the same end."""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from energon_pack import __version__
from energon_pack.errors import PackError, SamplesLost
from energon_pack.run.console import say
from energon_pack.run.executors.admission import forget
from energon_pack.run.executors.shared.beats import Beat, Watched, here, is_dead
from energon_pack.run.executors.shared.driver import Deposed, SharedExecutor
from energon_pack.run.executors.shared.folder import read_object, refresh, remove
from energon_pack.run.executors.shared.terms import Term, claim_term, latest_term
from energon_pack.run.progress import Progress

_FOLLOW_SECONDS = 0.5  # between two looks at the one who drives
_CLAIM_SECONDS = 0.1  # until what another has claimed is seen
#: in an outcome: its driver was interrupted, and another may go on
LEFT = "left"
_END_SECONDS = 15.0  # that it may take to end: it ends its own processes
_MOST_STARTS = 20  # of the process that does jobs
Figures = dict[str, Any]


class Together:
    """A run of which this process is one of those that do it.

    Args:
        folder: through which they speak; all machines see it under this path.
        settings: of the run, without those of the executor: another run with others is not joined.
        num_workers: processes of this machine; None: all cores.
        lost_after: seconds without a sign of life after which another process is lost.
        launch: the same word in all processes that were started together; one that comes when all is well done, is done
            too. None: it begins anew.
    """

    def __init__(
        self, folder: Path, settings: str, num_workers: int | None, lost_after: float, launch: str | None = None
    ):
        self._folder, self._lost_after = folder, lost_after
        self._about = {**here(), "settings": settings, "launch": launch, "version": __version__}
        self._node = _NodeProcess(folder, num_workers)
        self._joined: set[int] = set()  # terms whose driver was seen alive

    def run(self, drive: Callable[[SharedExecutor], Figures], progress: Progress) -> Figures:
        """Drive, or follow who does; what the run came to.

        Raises:
            PackError: the run ended so, here or elsewhere; or another one is at work in the folder.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        mine: Term | None = None
        with self._node:
            while True:
                latest = latest_term(self._folder)
                is_mine = mine is not None and latest is not None and latest.number == mine.number
                outcome = None if latest is None or is_mine else self._follow(latest)
                if outcome is not None:
                    return figures_of(outcome)
                mine = claim_term(self._folder, latest, self._about)
                if mine is None:
                    time.sleep(_CLAIM_SECONDS)
                    continue
                if latest is not None and not self._goes_on(latest):
                    remove(latest.note)
                try:
                    return self._drive(mine, drive, progress)
                except Deposed as error:
                    say(str(error))

    def _goes_on(self, term: Term) -> bool:
        """Whether the driver of a term was lost, or left, at work on what this one is to do."""
        outcome = term.outcome
        return term.about.get("settings") == self._about["settings"] and (outcome is None or bool(outcome.get(LEFT)))

    def _drive(self, term: Term, drive: Callable[[SharedExecutor], Figures], progress: Progress) -> Figures:
        for old in term.runs_before():
            forget(read_object(old.terms) or {})
            shutil.rmtree(old.path, ignore_errors=True)
        outcome: Mapping[str, Any] = {LEFT: True}  # interrupted: another may go on
        executor = SharedExecutor(term, self._lost_after, self._node.keep)

        def status() -> dict[str, Any]:
            return {"nodes": executor.nodes, "line": progress.line, **self._about}

        try:
            with executor, Beat(term.run.status, status):
                figures = drive(executor)
                outcome = {"exit_code": 0, "figures": figures}
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            executor.refuse_deposed()  # whose successor has taken its folder: what went wrong is no error of the run
            outcome = _outcome_of(error)
            raise
        finally:
            term.end({**outcome, "host": self._about["host"]})
        return figures

    def _follow(self, term: Term) -> Mapping[str, Any] | None:
        """Wait for the end of a term; None: somebody has to drive.

        Raises:
            PackError: its driver lives, and runs something else.
        """
        watched = Watched(term.beat, self._lost_after)
        was_met = False  # before it ended
        while True:
            outcome, launch = term.outcome, self._about["launch"]
            if outcome is not None:
                is_same = term.about.get("settings") == self._about["settings"]
                is_ours = launch is not None and launch == term.about.get("launch") and not outcome.get("exit_code")
                is_mine = term.number in self._joined or (is_same and (is_ours or was_met))
                return outcome if is_mine and not outcome.get(LEFT) else None
            is_lost = watched.is_lost() or is_dead(term.about)
            if watched.is_quiet or is_lost:
                refresh(self._folder / "terms")
            latest = latest_term(self._folder)
            if (latest and latest.number != term.number) or (is_lost and not term.has_ended):
                return None
            term, was_met = latest or term, bool(term.about)
            if watched.lives and was_met and term.number not in self._joined:
                self._join(term)
            self._node.keep()
            time.sleep(_FOLLOW_SECONDS)

    def _join(self, term: Term) -> None:
        driver, version = term.driver, term.about.get("version")
        if version != __version__:
            raise PackError(f"{driver} packs with energon_pack {version}, and this is {__version__}: install the same")
        if term.about.get("settings") != self._about["settings"]:
            raise PackError(f"{driver} packs there with other settings: wait for it, or choose another output.name")
        self._joined.add(term.number)
        say(f"{driver} drives this run, and this machine works for it")


class _NodeProcess:
    """The process that does jobs beside this one, and ends with it."""

    def __init__(self, folder: Path, num_workers: int | None):
        module = "energon_pack.run.executors.shared.node"
        self._command = [sys.executable, "-m", module, str(folder), str(num_workers or 0)]
        self._process: subprocess.Popen[bytes] | None = None
        self._num_started = 0

    def keep(self) -> None:
        """Have it running.

        Raises:
            PackError: it was started again and again.
        """
        if self._process is not None and self._process.poll() is None:
            return
        if self._num_started == _MOST_STARTS:
            raise PackError(f"the process that does jobs here ended {_MOST_STARTS} times: it says why above")
        self._num_started += 1
        self._hang_up()
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE)

    def __enter__(self) -> "_NodeProcess":
        self.keep()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hang_up()

    def _hang_up(self) -> None:
        """Have it end, and wait for that."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def _outcome_of(error: BaseException) -> dict[str, Any]:
    if isinstance(error, PackError):
        return {"exit_code": error.exit_code, "text": str(error), "page": getattr(error, "page", None)}
    return {"exit_code": 1, "text": f"{type(error).__name__}: {error}"}


def figures_of(outcome: Mapping[str, Any]) -> Figures:
    """What the run came to elsewhere; raises as it did there."""
    code, text = outcome.get("exit_code", 1), f"{outcome.get('text')} (on {outcome.get('host')})"
    if code == SamplesLost.exit_code:
        raise SamplesLost(text, outcome.get("page"))
    if code:
        raise PackError(text)
    say(f"done, by {outcome.get('host')}")
    return dict(outcome["figures"])
