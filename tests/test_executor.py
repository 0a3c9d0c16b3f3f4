"""Processes: results in order, and an end that neither waits nor complains."""

import os
import time
from pathlib import Path

import psutil
import pytest

from energon_pack.errors import PackError
from energon_pack.executor import LocalExecutor


def _double(number: int) -> int:
    return 2 * number


def _sleep(path: Path) -> None:
    path.write_text(str(os.getpid()))
    time.sleep(600)


def _die(_: int) -> None:
    os._exit(9)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_results_come_in_the_order_of_the_jobs(num_workers: int) -> None:
    """Else lengths would stand beside other samples."""
    with LocalExecutor(num_workers) as executor:
        assert list(executor.map(_double, range(20))) == [2 * number for number in range(20)]


def _fail_beside_work(executor: LocalExecutor, began: Path) -> None:
    with executor:
        executor.start(_sleep, began)
        next(executor.map(_double, range(2)))
        while not began.exists() or not began.read_text():
            time.sleep(0.01)
        raise ValueError("mistake")


def test_an_error_ends_the_jobs_at_work(tmp_path: Path) -> None:
    """Without it a failed run would wait for its longest job, or leave workers to fail after it."""
    began = tmp_path / "began"
    with pytest.raises(ValueError, match="mistake"):
        _fail_beside_work(LocalExecutor(2), began)
    assert not psutil.pid_exists(int(began.read_text()))


def test_a_killed_worker_is_an_error_that_names_the_knob() -> None:
    """Without it the run would hang or show a traceback."""
    with LocalExecutor(2) as executor, pytest.raises(PackError, match=r"executor\.num_workers"):
        list(executor.map(_die, range(2)))
