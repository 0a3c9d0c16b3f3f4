"""What a run shows while it works: each stage on a terminal, little in a log, and no time left out of the air."""

import io
import os
import pty
import re
import runpy
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path

import pytest
from rich.console import Console

from energon_pack.run.progress import Progress
from energon_pack.run.progress.lines import Done, Work, finished_lines, running_lines, signs_for
from energon_pack.run.progress.pace import Mark, Pace, seconds_left
from support.running import as_a_program, exit_code, run_here

RUN = ("+model=qwen2_5_vl", "executor.num_workers=1", "measure.verify=0")


def on_a_terminal(*arguments: str, cwd: Path, **variables: str) -> str:
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
            os.environ.pop("CI", None)
            os.environ.update({"TERM": "xterm", "COLUMNS": "120"} | variables)
            code = exit_code(lambda: runpy.run_module("energon_pack", run_name="__main__"))
    assert code == 0, seen.result()
    return seen.result()


def read_to_its_end(terminal: int) -> str:
    seen = b""
    with open(terminal, "rb", buffering=0) as file, suppress(OSError):  # nobody writes any more
        while more := file.read(1 << 16):
            seen += more
    return seen.decode()


@pytest.mark.long("two whole runs on a terminal")
def test_every_stage_is_shown_on_a_terminal(tmp_path: Path) -> None:
    """Seconds of nothing look like a run that hangs; and a line of each stage stays, once."""
    seen = on_a_terminal(*RUN, cwd=tmp_path)
    kept = re.findall(r"✓ \x1b\[0m(\w+) +[\d.]+ s", seen)
    assert kept == ["index", "processor", "lengths", "plan", "write", "verify", "check", "report", "publish"]
    assert "plan · write · verify · check · report · publish" in seen
    assert "320 samples" in seen
    again = on_a_terminal(*RUN, "output.overwrite=true", cwd=tmp_path)
    assert "320 samples from the cache" in again


@pytest.mark.parametrize("variables", [{"CI": "true"}, {"TERM": "dumb"}])
def test_nothing_is_drawn_where_nobody_looks(tmp_path: Path, cache: Path, variables: dict[str, str]) -> None:
    """The log of a CI job is a terminal to some, and would fill with bars."""
    assert on_a_terminal(*RUN, "stage=plan", f"cache_dir={cache}", cwd=tmp_path, **variables) == ""


def test_a_log_of_a_short_run_has_no_progress(tmp_path: Path, cache: Path) -> None:
    code, _, errors = run_here("+model=qwen2_5_vl", f"cache_dir={cache}", cwd=tmp_path)
    assert (code, errors) == (0, "")


# ------------------------------------------------------------------------------------------------ the time that is left


def test_the_time_left_is_by_the_rate_since_the_first_result() -> None:
    """Workers took 60 s to start, and then a second for 100 samples: 100 s are left of 10,200, not 3,000."""
    assert seconds_left((60.0, 100), (61.0, 200), 10_200) == 100.0
    assert seconds_left((60.0, 100), (60.0, 100), 10_200) is None


def test_results_that_come_with_the_first_one_say_nothing_of_the_rate() -> None:
    """16 workers end their first jobs together, after 10 s: 16 in 0.1 s would promise 984 others in 6 s."""
    pace = Pace(1000, start=0.0)
    for number in range(16):
        pace.note(Mark(10.0 + number / 150, number + 1))
    assert pace.seconds_left(11.0) is None
    pace.note(Mark(20.0, 32))
    assert pace.seconds_left(20.0) == pytest.approx((1000 - 32) * 10 / 16)
    assert pace.seconds_left(25.0) == pytest.approx((1000 - 32) * 10 / 16 - 5)  # time goes on between results
    assert pace.seconds_left(9999.0) == 0


def test_what_was_there_takes_no_time_from_the_rest() -> None:
    """A killed run had written 500 of 1,000 packs, which are looked at in an instant; the others take 1 s each."""
    pace = Pace(1000, start=0.0)
    pace.leave_out(500)
    for second in (1, 2, 3):
        pace.note(Mark(float(second), second))
    assert pace.seconds_left(3.0) == 497
    assert pace.share == 3 / 500


def test_the_rest_is_counted_in_what_takes_the_time() -> None:
    """Nine small shards took 1 s each, the tenth is as large as 91: it takes 91 s, not one."""
    progress = Progress(quiet=True)
    with progress.stage("index", 10, "shards", cost=100) as advance:
        for _ in range(9):
            advance(1, cost=1)
        work = progress._work
        assert work is not None
        assert (work.done, work.pace.share) == (9, 0.09)


def test_what_is_begun_is_seen() -> None:
    """1,009 packs of one shard stood at `0 %, 0 of 1,009` for 25 s: after 10 s a quarter of its bytes are there."""
    progress = Progress(quiet=True)
    with progress.stage("write", 1009, "packs in 1 shard", cost=4000, begun=lambda: 1000.0) as advance:
        work = progress._work
        assert work is not None
        assert work.seen(now=10.0, start=0.0) == (252, 0.25, 30.0)
        advance(1009, cost=4000)
        assert work.seen(now=40.0, start=0.0)[:2] == (1009, 1.0)


# --------------------------------------------------------------------------------------------------------- what is said


@pytest.fixture
def working() -> Work:
    """At 10 s the first results, at 20 s ten times as many."""
    pace = Pace(1_000_000, start=0.0)
    for at in (10, 20):
        pace.note(Mark(float(at), 50_000 * (at - 10), 100_000 * (at - 10), 10**9 * (at - 10)))
    return Work("measure", 1_000_000, "samples", pace, 500_000)


DONE = Done(500_000, 10**10, 7, Counter(bad_message=2, unreadable_media=9_000))


def test_a_stage_at_work(working: Work) -> None:
    signs = signs_for("utf-8")
    assert running_lines("lengths", 20.0, working, DONE, 20.0, 77, signs) == [
        f"lengths    {'━' * 15}{'─' * 15}   50 %  0:00:20  about 0:00:10 left",
        "           measure: 500,000 of 1,000,000 samples  100,000 samples/s",
        "           1,000 MB/s  7 from the cache",
        "           9,002 skipped (9,000 unreadable_media)",
    ]
    assert running_lines("lengths", 75.0, None, DONE, 20.0, 77, signs) == ["lengths    0:01:15"]


def test_a_stage_that_is_done() -> None:
    assert finished_lines("lengths", 20.0, DONE, 117) == [
        "lengths      20.0 s  500,000 samples  25,000 samples/s  500 MB/s  7 from the cache",
        "                     9,002 skipped (9,000 unreadable_media)",
    ]
    assert finished_lines("lengths", 0.04, Done(cached=320), 77) == ["lengths       0.0 s  320 samples from the cache"]
    assert finished_lines("check", 3700.0, Done(), 77) == ["check       1:01:40"]


@pytest.mark.parametrize("width", [20, 40, 79, 120])
def test_no_line_is_wider_than_the_terminal(working: Work, width: int) -> None:
    """What a terminal breaks is not drawn over: each time it would leave a line behind."""
    progress = Progress(("lengths", "plan", "write", "verify", "check", "publish"))
    progress._console = Console(file=(file := io.StringIO()), width=width, force_terminal=True, color_system=None)
    progress._stage, progress._work, progress.done["lengths"] = "lengths", working, DONE
    progress._console.print(progress._drawn(), no_wrap=True, overflow="crop")
    progress.seconds["lengths"] = 20.0
    progress._keep("lengths", True)
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= width


def test_a_locale_without_these_signs_gets_others(working: Work) -> None:
    signs = signs_for("ascii")
    assert "".join(running_lines("lengths", 20.0, working, DONE, 20.0, 77, signs)).isascii()
    assert "".join(signs).isascii()


def test_a_stage_that_is_interrupted_keeps_what_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("energon_pack.run.progress._can_draw", lambda: True)
    progress = Progress(("lengths",))
    progress._console = Console(file=(file := io.StringIO()), width=80, force_terminal=True, color_system=None)
    with suppress(KeyboardInterrupt), progress.timed("lengths"):
        progress.add(12)
        raise KeyboardInterrupt
    assert "✗ lengths       0.0 s  12 samples" in file.getvalue()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 60.0, 61.0, 120.0, 300.0])
    monkeypatch.setattr("energon_pack.run.progress.time.monotonic", lambda: next(times))


def test_a_log_says_the_time_left_when_it_is_known(clock: None) -> None:
    """Of several jobs at once, each line says whose it is."""
    log = Progress(job="job 1 seed=1")
    log._console, log._stage = Console(file=(file := io.StringIO()), width=120), "lengths"
    with log.stage("measure", 10_000, "samples") as advance:
        for _ in range(4):
            log.add(100, 5_900_000, skipped={"bad_message": 1})
            advance(100)
    assert file.getvalue().splitlines() == [
        "job 1 seed=1: measure: 100 of 10,000 samples, 1 skipped (bad_message)",
        "job 1 seed=1: measure: 300 of 10,000 samples, 1.7 samples/s, 0.098 MB/s, 3 skipped (bad_message),"
        " about 1:37:00 left",
        "job 1 seed=1: measure: 400 of 10,000 samples, 0.83 samples/s, 0.049 MB/s, 4 skipped (bad_message),"
        " about 3:12:00 left",
    ]


def test_what_stages_did_is_kept_by_their_names() -> None:
    progress = Progress(quiet=True)
    with progress.timed("lengths"), progress.stage("measure", 2, "samples") as advance:
        progress.add(1, 10)
        advance(1)
        progress.add(1, 20, cached=5)
        advance(1)
    assert progress.throughput == {"lengths": {"samples": 2, "cached": 5, "bytes": 30}}
    assert progress.seconds["lengths"] >= 0
