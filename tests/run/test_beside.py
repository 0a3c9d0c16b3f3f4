"""The process beside of a driver may be killed, as any other of a run on many machines."""

from pathlib import Path

import pytest

from energon_pack.run.executors.beside import Beside
from energon_pack.run.executors.local import WorkerKilled
from support.jobs import die, die_once, double


def test_jobs_of_a_process_that_was_killed_are_done_by_another(tmp_path: Path) -> None:
    """It checks the written shards and needs the most memory; if it was killed, the run ended on all machines."""
    with Beside() as beside:
        jobs = [beside.start(die_once, tmp_path / str(number)) for number in range(2)]
        last = beside.start(double, 7)
        assert [beside.result(job) for job in jobs] == ["0", "1"]
        assert beside.result(last) == 14
        assert beside.result(beside.start(double, 8)) == 16


def test_a_job_that_kills_each_process_is_an_error() -> None:
    with Beside() as beside, pytest.raises(WorkerKilled):
        beside.result(beside.start(die, 0))


def test_an_error_of_a_job_is_no_kill() -> None:
    with Beside() as beside:
        job = beside.start(int, "x")
        with pytest.raises(ValueError, match="invalid literal"):
            beside.result(job)
