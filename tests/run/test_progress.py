"""What a run shows while it works: each stage on a terminal, little in a log, and no time left out of the air."""

import io
import os
import pty
import runpy
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path

import pytest
from rich.console import Console

from energon_pack.run.progress import Progress, seconds_left
from support.running import as_a_program, exit_code, run_here

RUN = ("+model=qwen2_5_vl", "executor.num_workers=1", "measure.verify=0")


def on_a_terminal(*arguments: str, cwd: Path) -> str:
    """What a run writes to stderr where that is a terminal."""
    ours, theirs = pty.openpty()
    with ThreadPoolExecutor(1) as threads:
        seen = threads.submit(read_to_its_end, ours)
        with (
            open(theirs, "w") as terminal,
            as_a_program("energon_pack", *arguments, cwd=cwd),
            redirect_stdout(io.StringIO()),
            redirect_stderr(terminal),
        ):
            os.environ.update(TERM="xterm", COLUMNS="120")
            code = exit_code(lambda: runpy.run_module("energon_pack", run_name="__main__"))
    assert code == 0, seen.result()
    return seen.result()


def read_to_its_end(terminal: int) -> str:
    seen = b""
    with open(terminal, "rb", buffering=0) as file, suppress(OSError):  # nobody writes any more
        while more := file.read(1 << 16):
            seen += more
    return seen.decode()


def test_every_stage_is_shown_on_a_terminal(tmp_path: Path) -> None:
    """Seconds of nothing look like a run that hangs."""
    seen = on_a_terminal(*RUN, cwd=tmp_path)
    for stage in ("lengths", "measure", "processor", "plan", "write", "check"):
        assert stage in seen
    assert "320 samples" in seen


def test_a_log_of_a_short_run_has_no_progress(tmp_path: Path, cache: Path) -> None:
    code, _, errors = run_here("+model=qwen2_5_vl", f"cache_dir={cache}", cwd=tmp_path)
    assert (code, errors) == (0, "")


def test_the_time_left_is_by_the_rate_since_the_first_result() -> None:
    """Workers took 60 s to start, and then a second for 100 samples: 100 s are left of 10,200, not 3,000."""
    assert seconds_left((60.0, 100), (61.0, 200), 10_200) == 100.0
    assert seconds_left((60.0, 100), (60.0, 100), 10_200) is None


def test_a_log_says_the_time_left_when_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 60.0, 61.0, 120.0, 300.0])
    monkeypatch.setattr("energon_pack.run.progress.time.monotonic", lambda: next(clock))
    log = Progress()
    log._console = Console(file=io.StringIO(), width=120)
    with log.stage("measure", 10_000, "samples") as advance:
        for _ in range(4):
            advance(100)
    assert log._console.file.getvalue().splitlines() == [  # type: ignore[attr-defined]
        "measure: 100 of 10,000 samples",
        "measure: 300 of 10,000 samples, about 0:48:30 left",
        "measure: 400 of 10,000 samples, about 2:08:00 left",
    ]


def test_a_stage_takes_the_place_of_the_one_around() -> None:
    shown = Progress()
    shown._console, shown._is_live = Console(file=io.StringIO(), force_terminal=True), True
    with shown.timed("lengths"):
        with shown.stage("measure", 2, "samples") as advance:
            advance(1)
            assert shown._bars is not None
            assert [(task.description, task.visible) for task in shown._bars.tasks] == [
                ("lengths", False),
                ("measure", True),
            ]
        assert [(task.description, task.visible) for task in shown._bars.tasks] == [("lengths", True)]
    assert shown._bars is None
    assert shown.seconds["lengths"] >= 0
