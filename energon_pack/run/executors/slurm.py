"""Slurm: a run as a chain of jobs, each of which the scheduler starts, requeues and ends.

    array(stage=lengths part=i/N) ──► stage=plan ──► array(stage=write part=i/N) ──► stage=publish

Every task is the user's own command with a stage. Nothing of ours speaks between nodes: a task reads and writes files
that are whole or not there, so one that is done twice or begun again changes nothing.
"""

import json
import os
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from energon_pack.errors import PackError, SamplesLost
from energon_pack.run.console import say
from energon_pack.run.executors.admission import MachineTerms
from energon_pack.run.executors.settings import ExecutorConfig
from energon_pack.run.files import write_atomically

LENGTHS, PLAN, WRITE, PUBLISH = "lengths", "plan", "write", "publish"
#: The stages in order, each with the numbers of its parts; None: the stage has no parts.
Stages = Mapping[str, Sequence[int] | None]

_CHECK_SECONDS, _LINE_SECONDS, _APPEARS_SECONDS = 5.0, 60.0, 10.0
_ANSWER_SECONDS = 300.0  # Slurm's commands give up by themselves before that, unless the machine's own daemon hangs
_ERROR_LINE = re.compile(r"(?:energon-pack|slurmstepd[\w.-]*): error: (.*)")
#: reasons of Slurm for a waiting task that end only if somebody acts: all others, as Resources, end by themselves
_LASTING_REASON = re.compile(
    r"held|hold|never|bad ?constraints|invalid|not ?allowed|not ?satisfied|per ?job|per ?node|deleted|deadline"
    r"|^(partition|qos|association)(time|node)limit",
    re.IGNORECASE,
)
_HELD_STATES = frozenset(("REQUEUE_HOLD", "SPECIAL_EXIT"))
_EXIT_CODE_PREFIX = "energon-pack: exit code "  # of the log's last line, unless the task was killed with its script


class SlurmTask(NamedTuple):
    """A task that waits or runs: its state, and Slurm's reason why it waits; empty: it does not."""

    state: str
    reason: str = ""

    @property
    def is_stuck(self) -> bool:
        """Tell whether it waits for what does not come by itself."""
        reason = self.reason.replace("_", " ")
        return self.state in _HELD_STATES or (self.state == "PENDING" and bool(_LASTING_REASON.search(reason)))


@dataclass(frozen=True)
class SlurmJobChain:
    """The jobs of one run.

    Attributes:
        folder: for their scripts and logs; all nodes see it.
        command: the user's command without its stage; the first word is the Python.
    """

    settings: ExecutorConfig
    folder: Path
    command: Sequence[str]

    def build_scripts_by_stage(self, stages: Stages) -> dict[str, str]:
        """Return the script of each stage, in order."""
        return {stage: self._script(stage, parts) for stage, parts in stages.items()}

    def _script(self, stage: str, parts: Sequence[int] | None) -> str:
        log = f"{_without_patterns(self.folder)}/{stage}{'' if parts is None else '-%a'}.log"
        options = [f"--job-name=energon-pack-{stage}", "--nodes=1", "--ntasks=1", "--requeue", "--open-mode=append"]
        options += [f"--output={log}", "--kill-on-invalid-dep=yes"]
        if parts is not None:
            options.append(f"--array={_ranges(parts)}{f'%{self.settings.at_once}' if self.settings.at_once else ''}")
        for job in ("all", stage):
            options += shlex.split(self.settings.sbatch_options_by_stage.get(job, ""))
        check = shlex.join([self.command[0], "-m", "energon_pack.run.executors.admission", str(self._terms_file)])
        work = shlex.join([*self.command, f"stage={stage}"])
        steps = [f"cd {shlex.quote(os.getcwd())}", check]
        steps.append(work if parts is None else f"{work} part=$SLURM_ARRAY_TASK_ID/{self.settings.num_tasks}")
        if stage == PUBLISH:
            steps += [f"{check} --end", f"touch {shlex.quote(str(self._done_file))}"]
        lines = ["#!/bin/sh", *(f"#SBATCH {shlex.quote(option)}" for option in options), " &&\n".join(steps)]
        return "\n".join([*lines, "code=$?", f'echo "{_EXIT_CODE_PREFIX}$code on $(hostname)"', "exit $code", ""])

    @property
    def _terms_file(self) -> Path:
        """Return the path of the file with the conditions that a node must meet."""
        return self.folder / "terms.json"

    @property
    def _done_file(self) -> Path:
        """Return the path of the file that exists once the last job has published the dataset."""
        return self.folder / "published"

    @property
    def _jobs_file(self) -> Path:
        """Return the path of the file with the numbers of the jobs and the settings of their run."""
        return self.folder / "jobs.json"

    def submit(self, stages: Stages, terms: MachineTerms, run_settings: str) -> dict[str, str]:
        """Submit a job for each stage; it begins when the job of the stage before has succeeded.

        Returns:
            The job number of each stage.
        """
        for old in (self._done_file, *self.folder.glob("*.log"), *self.folder.glob("*.sh")):
            old.unlink(missing_ok=True)
        write_atomically(self._terms_file, json.dumps(asdict(terms)).encode())
        jobs: dict[str, str] = {}
        try:
            for stage, script in self.build_scripts_by_stage(stages).items():
                path = self.folder / f"{stage}.sh"
                write_atomically(path, script.encode())
                after = [f"--dependency=afterok:{[*jobs.values()][-1]}"] if jobs else []
                done = _slurm("sbatch", "--parsable", *after, str(path))
                if done.returncode:
                    raise PackError(f"executor.sbatch: {' '.join(done.stderr.split())[:300]}")
                jobs[stage] = done.stdout.strip().partition(";")[0]  # the cluster's name may follow
            write_atomically(self._jobs_file, json.dumps({"settings": run_settings, "jobs": jobs}).encode())
        except BaseException:
            if jobs:
                _slurm("scancel", *jobs.values())
            raise
        return jobs

    def find_submitted_jobs(self, run_settings: str) -> dict[str, str]:
        """Return the jobs of this same run if some of them are waiting or running; empty: there are none."""
        try:
            about = json.loads(self._jobs_file.read_bytes())
        except FileNotFoundError:
            return {}
        jobs: dict[str, str] = about["jobs"]
        if _unfinished_tasks(jobs) == {}:
            return {}
        if about["settings"] != run_settings:
            raise PackError(
                f"Slurm's jobs {', '.join(jobs.values())} pack there with other settings: wait for them, end them by"
                f" scancel {' '.join(jobs.values())}, or choose another output.name"
            )
        return jobs

    def wait(self, jobs: Mapping[str, str], progress: Callable[[], str]) -> None:
        """Wait until the jobs end, and show their progress; PackError: a task failed, or Slurm never starts it."""
        printed, last, answered, was_stuck = -_LINE_SECONDS, "", time.monotonic(), False
        most = f"{self.settings.give_up_after:,.0f} s (executor.give_up_after)"
        while not self._done_file.exists() and (tasks := _unfinished_tasks(jobs)) != {}:
            line = (
                f"Slurm: {_states_line(tasks)}; {progress()}" if tasks else f"Slurm does not answer: waiting for {most}"
            )
            now = time.monotonic()
            answered = answered if tasks is None else now
            if now - answered >= self.settings.give_up_after:
                raise PackError(
                    f"Slurm has not answered for {most}; its jobs {', '.join(jobs.values())} may go on, and the same"
                    " command waits for them again"
                )
            waiting = [(stage, task) for stage, of_stage in (tasks or {}).items() for task in of_stage]
            stuck = next((item for item in waiting if item[1].is_stuck), None)
            if stuck and was_stuck:  # twice: Slurm itself ends a job whose dependency failed
                raise self._error_of_failed_task(are_over=False) or _stuck_error(*stuck, jobs)
            was_stuck = was_stuck if tasks is None else stuck is not None
            if line != last and now - printed >= _LINE_SECONDS:
                say(line)
                printed, last = now, line
            time.sleep(_CHECK_SECONDS)
        end = time.monotonic() + _APPEARS_SECONDS  # a network file system may show a new file late
        while not self._done_file.exists():
            if time.monotonic() > end:
                raise self._failure()
            time.sleep(0.2)

    def _error_of_failed_task(self, are_over: bool) -> PackError | None:
        """Return the error of the first failed task: in the earliest failed stage, the task whose log ended first.

        `are_over`: no task runs any more, so one whose log has no exit code was killed. None: no task failed.
        """
        for stage in (LENGTHS, PLAN, WRITE, PUBLISH):
            for log in sorted(self.folder.glob(f"{stage}*.log"), key=lambda path: (path.stat().st_mtime, path.name)):
                code, why = _exit_code_and_error_line(log)
                if code != 0 and (are_over or code is not None):
                    kind = SamplesLost if code == SamplesLost.exit_code else PackError
                    return kind(f"{why} ({log}); the same command goes on from what is there")
        return None

    def _failure(self) -> PackError:
        """Return the error of jobs that ended without a dataset."""
        return self._error_of_failed_task(are_over=True) or PackError(
            f"Slurm ended the jobs, and no log in {self.folder} says why: they were cancelled before they began, or a"
            " node does not see that folder (cache_dir); the same command goes on"
        )


def _exit_code_and_error_line(log: Path) -> tuple[int | None, str]:
    """Return a task's exit code, None if it was killed with its script, and the line with the reason."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    code = None
    if lines and lines[-1].startswith(_EXIT_CODE_PREFIX):
        code = int(lines.pop().removeprefix(_EXIT_CODE_PREFIX).split()[0])
    errors = [match[1] for match in map(_ERROR_LINE.match, lines) if match]
    why = errors[-1] if errors else lines[-1] if lines else "its log is empty: is the disk full?"
    return code, why if errors or code is None else f"{why} (exit code {code})"


def _ranges(numbers: Sequence[int]) -> str:
    """Write numbers as ranges: `0-3,7` for 0, 1, 2, 3 and 7."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)


def _unfinished_tasks(jobs: Mapping[str, str]) -> dict[str, list[SlurmTask]] | None:
    """Return, by stage, the tasks that wait or run; None: Slurm does not answer."""
    done = _slurm("squeue", "--me", "--noheader", "--array", "--format=%F %T %r")
    if done.returncode:
        return None
    rows = [line.split(maxsplit=2) for line in done.stdout.splitlines()]
    tasks = {stage: [SlurmTask(*row) for number, *row in rows if number == job] for stage, job in jobs.items()}
    return {stage: of_stage for stage, of_stage in tasks.items() if of_stage}


def _stuck_error(stage: str, task: SlurmTask, jobs: Mapping[str, str]) -> PackError:
    """Return the error for a task that Slurm never starts."""
    return PackError(
        f"Slurm does not start {stage} (job {jobs[stage]}): {task.reason or task.state}. Mend it (scontrol release"
        f" {jobs[stage]} for a job that is held), and the same command waits on; or scancel {' '.join(jobs.values())},"
        " and start it with another executor.sbatch"
    )


def _states_line(tasks: Mapping[str, Sequence[SlurmTask]]) -> str:
    """Write the states as a line: `write: 3 running, 9 pending (Resources); then publish`."""
    stage, *later = tasks
    counts = []
    for state in sorted({task.state for task in tasks[stage]}, reverse=True):
        of_state = [task for task in tasks[stage] if task.state == state]
        reasons = ", ".join(sorted({task.reason for task in of_state} - {"", "None"}))
        counts.append(f"{len(of_state)} {state.lower()}{f' ({reasons})' if reasons else ''}")
    return f"{stage}: {', '.join(counts)}{'; then ' if later else ''}{', '.join(later)}"


def _without_patterns(folder: Path) -> str:
    """Write a folder as an option's value that means just this folder: Slurm replaces %a, %j, %x and the like in it."""
    if "\\" in str(folder) or not str(folder).isprintable():
        raise PackError(f"executor=slurm: Slurm takes no such name for the folder of its logs: {folder} (cache_dir)")
    return str(folder).replace("%", "%%")


def _slurm(program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=_ANSWER_SECONDS)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess([program], 1, "", f"{program} does not end: Slurm does not answer")
    except FileNotFoundError:
        raise PackError(
            f"executor=slurm: there is no {program} here; run it where jobs are submitted, or have anything else start"
            " stage=lengths, plan, write and publish with part=NUMBER/PARTS"
        ) from None
