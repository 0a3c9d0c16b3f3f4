"""Slurm: a run as a chain of jobs, each of which the scheduler starts, requeues and ends.

    array(stage=lengths part=i/N) ──► stage=plan ──► array(stage=write part=i/N) ──► stage=publish

Every task is the user's own command with a stage. Nothing of ours speaks between nodes: a task reads and writes files
that are whole or not there, so one that is done twice or begun again changes nothing.
"""

import json
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from energon_pack.errors import PackError, amount
from energon_pack.run.console import say
from energon_pack.run.executors.admission import Terms
from energon_pack.run.executors.settings import ExecutorConfig
from energon_pack.run.files import write_whole

LENGTHS, PLAN, WRITE, PUBLISH = "lengths", "plan", "write", "publish"
_LOOK_SECONDS, _LINE_SECONDS = 5.0, 60.0
_ERROR = "energon-pack: error: "


@dataclass(frozen=True)
class Chain:
    """The jobs of one run.

    Attributes:
        folder: where their scripts and logs lie; all nodes see it.
        command: the user's, without its stage.
        stages: those that are still to come, in order, and the parts of each; None: it has none.
    """

    settings: ExecutorConfig
    folder: Path
    command: Sequence[str]
    stages: Mapping[str, Sequence[int] | None]

    def scripts(self) -> dict[str, str]:
        """The script of each stage, in order."""
        scripts = {}
        at_once = f"%{self.settings.at_once}" if self.settings.at_once else ""
        for stage, parts in self.stages.items():
            log = self.folder / f"{stage}{'' if parts is None else '-%a'}.log"
            options = [f"--job-name=energon-pack-{stage}", "--nodes=1", "--ntasks=1", "--requeue", "--open-mode=append"]
            options += [f"--output={log}", "--kill-on-invalid-dep=yes"]
            options += [] if parts is None else [f"--array={_ranges(parts)}{at_once}"]
            for given in (self.settings.sbatch, getattr(self.settings, f"sbatch_{stage}")):
                options += shlex.split(given or "")
            words = [*self.command, f"stage={stage}", "executor=local"]
            part = "" if parts is None else f" part=$SLURM_ARRAY_TASK_ID/{self.settings.num_tasks}"
            look = shlex.join([self.command[0], "-m", "energon_pack.run.executors.admission", str(self.terms_file)])
            done = "" if stage != PUBLISH else f" && touch {shlex.quote(str(self.done_file))}"
            lines = ["#!/bin/sh", *(f"#SBATCH {shlex.quote(option)}" for option in options)]
            scripts[stage] = "\n".join([*lines, f"{look} && {shlex.join(words)}{part}{done}", ""])
        return scripts

    @property
    def terms_file(self) -> Path:
        """What a node must have, and must see."""
        return self.folder / "terms.json"

    @property
    def done_file(self) -> Path:
        """Is there when the last job has published the dataset."""
        return self.folder / "published"

    def submit(self, terms: Terms) -> list[str]:
        """Submit the jobs, each after the one before it has ended well; their numbers.

        Raises:
            PackError: there is no Slurm, or it refuses.
        """
        write_whole(self.terms_file, json.dumps(asdict(terms)).encode())
        self.done_file.unlink(missing_ok=True)
        jobs: list[str] = []
        for stage, script in self.scripts().items():
            path = self.folder / f"{stage}.sh"
            write_whole(path, script.encode())
            after = [f"--dependency=afterok:{jobs[-1]}"] if jobs else []
            done = _slurm("sbatch", "--parsable", *after, str(path))
            if done.returncode:
                if jobs:
                    _slurm("scancel", *jobs)
                raise PackError(f"executor.sbatch: {' '.join(done.stderr.split())[:300]}")
            jobs.append(done.stdout.strip().partition(";")[0])  # the name of the cluster may follow
        write_whole(self.folder / "jobs.json", json.dumps(jobs).encode())
        return jobs

    def submitted(self) -> list[str]:
        """The numbers of the jobs of this run that wait or work now."""
        try:
            jobs = json.loads((self.folder / "jobs.json").read_bytes())
        except FileNotFoundError:
            return []
        return jobs if not _is_over(jobs) else []

    def wait(self, jobs: Sequence[str], progress: Callable[[], str]) -> None:
        """Wait for the end of the jobs, and say how far they are.

        Args:
            progress: what the files say.

        Raises:
            PackError: they ended, and the dataset is not published; with the error of the first task that has one.
        """
        said, last = time.monotonic(), ""
        while not _is_over(jobs):
            line = f"Slurm: {_states(jobs)}; {progress()}"
            if line != last and (not last or time.monotonic() - said > _LINE_SECONDS):
                say(line)
                said, last = time.monotonic(), line
            time.sleep(_LOOK_SECONDS)
        if not self._appears(self.done_file):
            raise PackError(f"{self._error() or 'no task says why'} (logs in {self.folder}); the same command goes on")

    @staticmethod
    def _appears(path: Path) -> bool:
        """A network file system may show a new file late."""
        end = time.monotonic() + _LOOK_SECONDS
        while not path.exists() and time.monotonic() < end:
            time.sleep(0.2)
        return path.exists()

    def _error(self) -> str | None:
        """The last error of the first log that has one, in the order of the stages."""
        for stage in (LENGTHS, PLAN, WRITE, PUBLISH):
            for log in sorted(self.folder.glob(f"{stage}*.log")):
                lines = [line for line in log.read_text(errors="replace").splitlines() if line.startswith(_ERROR)]
                if lines:
                    return f"{log.stem}: {lines[-1].removeprefix(_ERROR)}"
        return None


def _ranges(numbers: Sequence[int]) -> str:
    """`0-3,7` for 0, 1, 2, 3 and 7."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)


def _states(jobs: Sequence[str]) -> str:
    """How many tasks are in which state."""
    done = _slurm("squeue", "--noheader", "--array", "--format=%T", "--jobs", ",".join(jobs))
    states = done.stdout.split()
    counts = {state: states.count(state) for state in sorted(set(states))}
    return ", ".join(f"{amount(number, 'task')} {state.lower()}" for state, number in counts.items()) or "no task left"


def _is_over(jobs: Sequence[str]) -> bool:
    """Whether no task waits or runs; False where Slurm does not answer, too."""
    for job in jobs:  # one that is forgotten is an error of the whole question
        done = _slurm("squeue", "--noheader", "--jobs", job)
        if done.stdout.strip() or (done.returncode and "Invalid job id" not in done.stderr):
            return False
    return True


def _slurm(program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run([program, *arguments], capture_output=True, text=True)
    except FileNotFoundError:
        raise PackError(
            f"executor=slurm: there is no {program} here; run it where jobs are submitted, or have anything else start"
            " stage=lengths, plan, write and publish with part=NUMBER/PARTS"
        ) from None
