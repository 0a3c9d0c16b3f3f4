"""A terminal shows what data bring, and obeys none of it; a table that is wider loses none of its numbers."""

import io
import json
import logging
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
from rich.text import Text

from energon_pack.errors import PackError, amount
from energon_pack.report.pages.html import Rows, print_table
from energon_pack.run import console
from energon_pack.run.console import EscapingFormatter, hold_output_under_title, print_error, say
from energon_pack.run.progress import Progress, StageCounts, finished_stage_text
from support.running import as_a_program, exit_code, run_here


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (30, "      packs    fill\ntext      6  96.00%\n"),
        (18, "text: packs 6, \nfill 96.00%\n"),
    ],
)
def test_a_narrow_terminal_gets_words(
    width: int, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At 40 columns `47,188` was `47,…`."""
    monkeypatch.setattr("energon_pack.report.pages.html.console", lambda: Console(width=width))
    print_table(Rows(("", "packs", "fill"), [("text", "6", "96.00%")]))
    assert capsys.readouterr().out == shown


HOSTILE = "a\x1b[31m\x1b]0;title\x07\x9b2J\u202egpj.\r\nb\udc80"  # colour, title, erase, other direction, other line
SHOWN = r"a\x1b[31m\x1b]0;title\x07\x9b2J\u202egpj.\r\nb\udc80"


def test_escape_sequences_are_shown_wherever_they_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """A file may be called so, and its name erased the screen, or wrote another line than the one that is true."""
    say(HOSTILE)
    print_error("energon-pack: error", HOSTILE.replace("\r\n", ""))
    print_table(Rows([HOSTILE], [[HOSTILE]]))
    console.console().print(Text.assemble((HOSTILE, "bold red")), soft_wrap=True)
    with hold_output_under_title("job 0"):
        say(HOSTILE)
    progress = Progress()
    progress._console.print(HOSTILE)
    out, errors = capsys.readouterr()
    record = logging.LogRecord("x", logging.WARNING, "x", 1, "%s", (HOSTILE,), None)
    printed = [out, errors, EscapingFormatter().format(record), str(PackError(HOSTILE))]
    assert out.startswith(f"{SHOWN}\n")
    assert "\\x1b[31m" in errors
    assert not {*"".join(printed)} & {*"\x1b\x07\x9b\u202e\r\udc80"}


def test_a_source_whose_names_and_keys_are_escape_sequences(demo: tuple[Path, Path], tmp_path: Path) -> None:
    """The whole command: what it says of files, samples, keys and errors."""
    evil = "\x1b[31m\x1b[2Jevil\x9b1m"
    turns = [{"role": "user", "content": "What?"}, {"role": "assistant", "content": "That."}]
    records = [
        {"messages": turns, evil: 1},
        {"messages": [{"role": evil, "content": evil}]},
        {"images": [evil], "x": 1},
    ]
    lines = [json.dumps({"messages": turns})] * 300 + list(map(json.dumps, records))
    source, out_dir = tmp_path / "source", f"output.dir={tmp_path / 'out'}"
    source.mkdir()
    (source / f"{evil}.jsonl").write_text("\n".join(lines))
    settings = ["+model=qwen2_5_vl", f"model.processor={demo[1]}", "max_skipped=0.5", out_dir]
    code, out, errors = run_here(*settings, f"source.path={source}", "stage=plan", "output.name=x", cwd=tmp_path)
    assert code == 3, errors  # every image is missing
    (source / f"{evil}.jsonl").unlink()
    (source / f"{evil}.tar").write_bytes(b"no tar" * 1000)
    refused = run_here(*settings, f"source.path={source}", cwd=tmp_path)
    assert (refused[0], refused[2].count(r"\x1b[31m\x1b[2Jevil\x9b1m.tar is not a tar file")) == (1, 1)
    assert out.count(r"\x1b[31m\x1b[2Jevil") >= 2
    assert not {*out, *errors, *refused[1], *refused[2]} & {*"\x1b\x9b"}


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 samples"), (1, "1 sample"), (2, "2 samples"), (1009, "1,009 samples")]
)
def test_a_number_agrees_with_its_noun(number: int, said: str) -> None:
    assert amount(number, "sample") == said


RUN = ("+model=qwen2_5_vl", "executor.num_workers=1", "measure.verify=0")


def on_a_terminal(*arguments: str, cwd: Path, **variables: str) -> str:
    """Return what a run writes to a stderr that is a terminal."""
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


# --------------------------------------------------------------------------------------------- what is left, and said


def test_what_was_there_takes_no_time_from_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed run had written 500 of 1,000 packs, which are looked at in an instant; the others take 1 s each."""
    now = [0.0]
    monkeypatch.setattr("energon_pack.run.progress.time.monotonic", lambda: now[0])
    progress = Progress(quiet=True)
    with progress.stage("write", 1000, "packs") as advance:
        advance(500, is_new=False)
        for second in (60.0, 61.0, 62.0):  # workers took a minute to start
            now[0] = second
            advance(1)
        assert progress.running_stage_text == "write: 503 of 1,000 packs, about 0:08:17 left"


def test_the_rest_is_counted_in_what_takes_the_time() -> None:
    """Nine small shards took 1 s each, the tenth is as large as 91: it takes 91 s, not one."""
    progress = Progress(quiet=True)
    with progress.stage("index", 10, "shards", cost=100) as advance:
        for _ in range(9):
            advance(1, cost=1)
        work = progress._work
        assert work is not None
        assert (work.done, work.task.percentage) == (9, 9)


def test_what_is_begun_is_seen() -> None:
    """1,009 packs of one shard stood at `0 %, 0 of 1,009` for 25 s: after 10 s a quarter of its bytes are there."""
    progress = Progress(quiet=True)
    with progress.stage("write", 1009, "packs in 1 shard", cost=4000, begun_cost=lambda: 1000.0) as advance:
        assert drawn(progress, 80)[1].split("  ")[1] == "252 of 1,009 packs in 1 shard"
        assert " 25%" in drawn(progress, 80)[0]
        advance(1009, cost=4000)
        assert "1,009 of 1,009 packs" in drawn(progress, 80)[1]


def drawn(progress: Progress, width: int) -> list[str]:
    """Return the text that a terminal shows."""
    console = Console(file=(file := io.StringIO()), width=width, force_terminal=True, color_system=None)
    console.print(progress._drawn())
    return file.getvalue().splitlines()


DONE = StageCounts(500_000, 10**10, 7, Counter(bad_message=2, unreadable_media=9_000))


def test_a_stage_that_is_done() -> None:
    assert finished_stage_text("lengths", 20.0, DONE) == (
        "lengths      20.0 s  500,000 samples  25,000 samples/s  500 MB/s  7 from the cache"
        "  9,002 skipped (9,000 unreadable_media)"
    )
    assert (
        finished_stage_text("lengths", 0.04, StageCounts(cached=320))
        == "lengths       0.0 s  320 samples from the cache"
    )
    assert finished_stage_text("check", 3700.0, StageCounts()) == "check       1:01:40"


@pytest.mark.parametrize("width", [20, 40, 79, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    """Lines that a terminal wraps can't be redrawn: each update would leave a line behind."""
    progress = Progress(("lengths", "plan", "write", "verify", "check", "publish"), quiet=True)
    progress.counts["lengths"] = DONE
    with progress._shown("lengths"), progress.stage("measure", 1_000_000, "samples") as advance:
        advance(500_000)
        lines = drawn(progress, width)
    assert max(map(len, lines)) <= width
    assert "plan" in "".join(lines)


def test_a_stage_that_is_interrupted_keeps_what_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("energon_pack.run.progress._can_draw", lambda: True)
    progress = Progress(("lengths",))
    progress._console = Console(file=(file := io.StringIO()), width=80, force_terminal=True, color_system=None)
    with suppress(KeyboardInterrupt), progress.timed("lengths"):
        progress.add(12)
        raise KeyboardInterrupt
    assert "✗ lengths       0.0 s  12 samples" in file.getvalue()


def test_a_log_says_the_time_left_when_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """With several jobs at once, each line names its job; the first line comes after half a minute."""
    now = [0.0]
    monkeypatch.setattr("energon_pack.run.progress.time.monotonic", lambda: now[0])
    log = Progress(job="job 1 seed=1")
    log._console = Console(file=(file := io.StringIO()), width=120)
    with log.stage("measure", 10_000, "samples") as advance:
        for now[0] in (20.0, 60.0, 61.0, 120.0):
            log.add(100, 6_000_000, skipped={"bad_message": 1})
            advance(100)
    assert file.getvalue().splitlines() == [
        "job 1 seed=1: measure: 200 of 10,000 samples, 3.3 samples/s, 0.2 MB/s, 2 skipped (bad_message),"
        " about 1:05:20 left",
        "job 1 seed=1: measure: 400 of 10,000 samples, 3.3 samples/s, 0.2 MB/s, 4 skipped (bad_message),"
        " about 0:53:20 left",
    ]


def test_what_stages_did_is_kept_by_their_names() -> None:
    progress = Progress(quiet=True)
    with progress.timed("lengths"), progress.stage("measure", 2, "samples") as advance:
        progress.add(1, 10)
        advance(1)
        progress.add(1, 20, cached=5)
        advance(1)
    assert progress.totals_by_stage == {"lengths": {"samples": 2, "cached": 5, "bytes": 30}}
    assert progress.seconds["lengths"] >= 0
