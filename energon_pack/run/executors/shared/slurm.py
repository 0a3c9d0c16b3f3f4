"""Slurm: what it says of this process, and a run that submits itself as an array of tasks, and waits for them."""

import json
import os
import shlex
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from energon_pack.errors import PackError
from energon_pack.run.console import say
from energon_pack.run.executors.settings import ExecutorConfig
from energon_pack.run.executors.shared.folder import refresh, write
from energon_pack.run.executors.shared.status import SUBMITTED, status_of
from energon_pack.run.executors.shared.terms import latest_term
from energon_pack.run.executors.shared.together import figures_of

_ARRAY, _JOB, _STEP = "SLURM_ARRAY_JOB_ID", "SLURM_JOB_ID", "SLURM_STEP_ID"
_FIRST_RESERVED = 0xFFFFFF00  # numbers from here on are of no `srun`: of a script, or of the shell of an allocation
_LOOK_SECONDS, _ASK_SECONDS, _LINE_SECONDS = 1.0, 10.0, 30.0
Outcome = Mapping[str, Any] | None


def launch_of(settings: ExecutorConfig) -> str | None:
    """A word that is the same in all processes that were started together; None: nothing says which these are.

    An allocation alone says nothing: the same command may be given in it again, and is then to do its work again.
    """
    array, step = os.environ.get(_ARRAY), os.environ.get(_STEP)
    if step is None or int(step) >= _FIRST_RESERVED:
        return settings.launch or array
    return settings.launch or f"{array or os.environ.get(_JOB)}.{step}"


def submit(settings: ExecutorConfig, folder: Path, run: str, command: Sequence[str]) -> dict[str, Any]:
    """Have Slurm start a command on many nodes, and wait for the end where the settings say so.

    Args:
        folder: where these tasks will meet.
        run: its settings, as `Together` takes them: the tasks may join one that is at work already.
        command: of each task, without what only this one has.

    Returns:
        What the run came to; empty where it is not waited for.

    Raises:
        PackError: there is no Slurm, it refuses, or the tasks ended without an end of the run; or as the run.
    """
    if settings.num_nodes is None:
        raise PackError("executor.sbatch needs executor.num_nodes=N, the tasks of the array")
    launch = uuid.uuid4().hex[:12]
    logs = folder / "logs" / launch
    logs.mkdir(parents=True, exist_ok=True)
    own = ["executor.sbatch=null", "executor.num_nodes=null", "executor.wait=true", f"executor.launch={launch}"]
    task = shlex.join([*command, *own])
    array = f"--array=0-{settings.num_nodes - 1}"
    options = ["--parsable", "--job-name=energon-pack", "--nodes=1", "--ntasks=1", array, f"--output={logs}/%a.log"]
    before = latest_term(folder)
    first = 0 if before is None else before.number + (before.outcome is not None)
    done = _slurm("sbatch", *options, *shlex.split(settings.sbatch or ""), "--wrap", task)
    if done.returncode:
        raise PackError(f"executor.sbatch={settings.sbatch}: {' '.join(done.stderr.split())[:300]}")
    job = done.stdout.strip().partition(";")[0]  # the cluster may follow
    write(folder / SUBMITTED, json.dumps({"job": job, "first": first}).encode())
    say(f"submitted as Slurm's job {job}; each task writes into {logs}")
    if not settings.wait:
        say("see how far it is: the same command with --status")
        return {}
    try:
        return _wait(folder, launch, partial(_joined, folder, run, first), job, logs)
    except KeyboardInterrupt:
        say(f"not waited for any more; it goes on. To end it: scancel {job}")
        raise


def _wait(folder: Path, launch: str, joined: Callable[[], Outcome], job: str, logs: Path) -> dict[str, Any]:
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    asked = said = time.monotonic()
    last, is_over = "", False
    while True:
        refresh(folder / "terms")
        status = status_of(folder, launch)
        if status is not None and status.outcome is not None and not status.was_left:
            return figures_of(status.outcome)
        if is_over:
            if (outcome := joined()) is not None:
                return figures_of(outcome)
            raise PackError(f"Slurm's job {job} is over, and the run is not: {logs} says why; the same command goes on")
        now = time.monotonic()
        if status is not None and status.line != last and now - said > _LINE_SECONDS:
            console.print(status.line, soft_wrap=True)
            last, said = status.line, now
        if now - asked > _ASK_SECONDS:
            asked = now
            is_over = _is_over(job)
        time.sleep(_LOOK_SECONDS)


def _joined(folder: Path, run: str, first: int) -> Outcome:
    """What came of a run of these settings that was begun by others; None: there is none.

    Args:
        first: the earliest term that these tasks could join.
    """
    status = status_of(folder)
    if status is None or status.was_left or status.term.number < first or status.term.about.get("settings") != run:
        return None
    return status.outcome


def _is_over(job: str) -> bool:
    """Whether no task of it waits or runs; False where Slurm does not answer, too."""
    done = _slurm("squeue", "--noheader", "--jobs", job)
    return not done.stdout.strip() if done.returncode == 0 else "Invalid job id" in done.stderr


def _slurm(program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run([program, *arguments], capture_output=True, text=True)
    except FileNotFoundError:
        raise PackError(
            f"executor.sbatch: there is no {program} here; with executor.sbatch=null this command is itself one of the"
            " tasks: start it on each node by what there is"
        ) from None
