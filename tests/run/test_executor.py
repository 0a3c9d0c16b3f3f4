"""Processes: results in order, and an end that neither waits nor complains, whatever the workers do."""

import itertools
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import count
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from energon_pack.config import PackConfig
from energon_pack.errors import PackError
from energon_pack.pack import pack
from energon_pack.run.executors import Job, JobFolder, Result
from energon_pack.run.executors.local import LocalExecutor
from energon_pack.run.executors.workers import IdleTime, cpu_seconds_and_transferred_bytes
from energon_pack.sources.storage import call_counting_read_bytes
from support import jobs
from support.jobs import hold, sleep
from support.packed import files
from support.running import PIPELINE, ROOT, command


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run's end waits less for workers that do not end."""
    monkeypatch.setattr("energon_pack.run.executors.local._END_SECONDS", 1.5)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_results_come_in_the_order_of_the_jobs(num_workers: int) -> None:
    """Else lengths would stand beside other samples."""
    with LocalExecutor(num_workers) as executor:
        assert list(executor.map(jobs.double, range(20))) == [2 * number for number in range(20)]


def test_no_process_without_work_for_it() -> None:
    """Without it a small set pays for processes that take longer to start than all of its work takes."""
    with LocalExecutor(8) as executor:
        assert set(executor.map(jobs.process, range(6), are_short=True)) == {os.getpid()}
        assert not executor._context.started
        [beside] = executor.map(jobs.process, range(1))
        assert executor.result(executor.start(jobs.process, 0)) == beside != os.getpid()
        assert len(executor._context.started) == 1
        assert len(set(executor.map(jobs.process, range(2)))) <= 2
        assert len(executor._context.started) <= 3


def test_work_that_is_not_short_after_all_is_shared() -> None:
    with LocalExecutor(2) as executor:
        begun = list(executor.map(jobs.slow, range(6), are_short=True))
        assert begun[0] == os.getpid()
        assert os.getpid() not in begun[1:]


@pytest.mark.usefixtures("_impatient")
def test_one_job_does_not_wait_for_a_long_one_beside(tmp_path: Path) -> None:
    """The shard of a small set is written while its samples are verified."""
    with LocalExecutor(2) as executor:
        executor.start(sleep, tmp_path / "began")
        assert list(executor.map(jobs.process, range(1))) == [os.getpid()]


def test_one_worker_is_this_process(tmp_path: Path) -> None:
    with LocalExecutor(1) as executor:
        assert executor.result(executor.start(jobs.process, 0)) == os.getpid()
        with pytest.raises(ZeroDivisionError):
            executor.result(executor.start(_fail, 0))


def test_a_script_from_stdin_has_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """`python - < run.py`: no worker could read the file `<stdin>`, and memory was said to be the cause."""
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "/nowhere/<stdin>", raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    with LocalExecutor(2) as executor:
        assert list(executor.map(jobs.double, range(4))) == [0, 2, 4, 6]


def _fail(_: int) -> float:
    return 1 / 0


def _wait_for(began: Path) -> int:
    while not began.exists() or not began.read_text():
        time.sleep(0.01)
    return int(began.read_text())


def _fail_beside_work(executor: LocalExecutor, work: Callable[[Path], None], began: Path) -> None:
    with executor:
        executor.start(work, began)
        next(executor.map(jobs.double, range(2)))
        _wait_for(began)
        raise ValueError("mistake")


@pytest.mark.parametrize("work", [sleep, hold])
def test_an_error_ends_the_jobs_at_work(tmp_path: Path, work: Callable[[Path], None]) -> None:
    """Without it a failed run would wait for its longest job, or leave workers to fail after it."""
    began = tmp_path / "began"
    with pytest.raises(ValueError, match="mistake"):
        _fail_beside_work(LocalExecutor(2), work, began)
    assert not psutil.pid_exists(int(began.read_text()))


@pytest.mark.usefixtures("_impatient")
def test_a_run_ends_where_a_worker_does_not(tmp_path: Path) -> None:
    """Without it a finished run would wait for a worker that hangs at its exit."""
    began = tmp_path / "began"
    with LocalExecutor(2) as executor:
        executor.start(hold, began)
        pid = _wait_for(began)
    assert not psutil.pid_exists(pid)


@pytest.mark.parametrize("work", ["sleep", "hold"])
def test_workers_die_with_a_killed_parent(tmp_path: Path, work: str) -> None:
    """Without it the process that verifies lengths stayed alive for ever after a SIGKILL of the run."""
    began, tests = tmp_path / "began", str(ROOT / "tests")
    script = f"""
if __name__ == "__main__":
    import sys; sys.path[:0] = [{tests!r}, {str(ROOT)!r}]
    from pathlib import Path
    from energon_pack.run.executors.local import LocalExecutor
    from support.jobs import {work}
    with LocalExecutor(2) as executor:
        executor.result(executor.start({work}, Path({str(began)!r})))
"""
    (tmp_path / "run.py").write_text(script)
    parent = subprocess.Popen([sys.executable, tmp_path / "run.py"])
    worker = psutil.Process(_wait_for(began))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert psutil.wait_procs([worker], timeout=60)[1] == []


@pytest.mark.usefixtures("_impatient")
def test_a_worker_that_never_returns_is_an_error(tmp_path: Path) -> None:
    """Without it a deadlock in a decoder is a run that waits for ever."""
    with (
        LocalExecutor(2, patience=1.0) as executor,
        pytest.raises(PackError, match="have read nothing and done nothing"),
    ):
        executor.result(executor.start(hold, tmp_path / "began"))


@pytest.mark.usefixtures("_impatient")
def test_half_a_result_of_a_killed_worker_is_not_waited_for() -> None:
    """Without it the run, or the interpreter at its exit, waits for the other half for ever."""
    before = set(threading.enumerate())
    with LocalExecutor(2, patience=1.0) as executor, pytest.raises(PackError, match="was killed"):
        executor.result(executor.start(jobs.half_a_result, 0))
    with pytest.raises(PackError, match="was killed"), LocalExecutor(2, patience=1.0) as executor:
        executor.result(executor.start(jobs.half_a_result, 0))
    assert set(threading.enumerate()) <= before


def test_an_interrupt_while_a_worker_is_killed_in_half_a_result() -> None:
    """A cancelled job behind it stopped Python 3.11's pool half way: the interpreter's exit waited for a full pipe."""
    before = set(threading.enumerate())
    work = ((number, bytes(1 << 20)) for number in itertools.count())  # larger than a pipe

    def interrupted() -> None:
        with LocalExecutor(2) as executor:
            results = executor.map(jobs.half_of_the_second, work)
            assert next(results) == 0
            time.sleep(1)
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
            next(results)

    before_it = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background hears none
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    signal.signal(signal.SIGINT, before_it)
    assert set(threading.enumerate()) <= before


def test_a_worker_at_work_is_waited_for() -> None:
    """A long job is no deadlock, and an error of its own stays that."""
    with LocalExecutor(2, patience=0.5) as executor:
        assert list(executor.map(jobs.busy, [1.5])) == [True]
        with pytest.raises(TimeoutError, match="the disk"):
            list(executor.map(jobs.late_error, range(1)))


def test_a_killed_worker_is_an_error_that_names_the_knob() -> None:
    """Without it the run would hang or show a traceback."""
    with LocalExecutor(2) as executor, pytest.raises(PackError, match=r"executor\.num_workers"):
        list(executor.map(jobs.die, range(2)))


def test_a_script_that_packs_when_it_is_imported_is_named(tmp_path: Path) -> None:
    """Each worker ran the script again and ended, and the run blamed memory."""
    script = tmp_path / "script.py"
    script.write_text(
        "from energon_pack.run.executors.local import LocalExecutor\n"
        "with LocalExecutor(2) as executor:\n"
        "    list(executor.map(abs, range(2)))\n"
    )
    done = command(script, cwd=tmp_path, PYTHONPATH=str(ROOT))
    last = done.stderr.splitlines()[-1]
    assert "a worker process ended by itself" in last
    assert last.endswith('below `if __name__ == "__main__":`')


def test_a_worker_killed_while_a_result_is_used_is_that_error(tmp_path: Path) -> None:
    """The next job then meets a broken pool before any wait does; it was a traceback."""
    with LocalExecutor(2) as executor:
        pids = executor.map(jobs.pid, range(100))
        victim = psutil.Process(next(pids))
        victim.kill()
        psutil.wait_procs([victim], timeout=60)
        time.sleep(0.5)  # for the pool to see it
        with pytest.raises(PackError, match=r"executor\.num_workers"):
            list(pids)


def test_workers_outlive_the_thread_that_started_them() -> None:
    """To the kernel that thread is their parent: it killed them, and the error told of memory."""
    results: list[float] = []
    with LocalExecutor(2) as executor:
        naps = executor.map(jobs.nap, [0.05] * 20)
        thread = Thread(target=lambda: results.append(next(naps)))
        thread.start()
        thread.join()
        assert results + list(naps) == [0.05] * 20


def test_workers_that_answer_at_once_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two thirds of the parent's time went into looking, more with more workers."""
    monkeypatch.setattr(psutil, "Process", None)
    with LocalExecutor(2) as executor:
        assert list(executor.map(jobs.double, range(20))) == [2 * number for number in range(20)]


def test_a_suspended_job_is_not_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler may stop a job for hours: no worker of it has done anything when it goes on."""
    clock = count(step=3600.0)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    with LocalExecutor(2, patience=1.0) as executor:
        assert executor.result(executor.start(jobs.nap, 1.2)) == 1.2


def test_reading_a_mapped_file_is_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A JSONL file on slow storage costs hardly any time of the processor, and no call that reads."""
    pages = count(step=4096)
    process = SimpleNamespace(
        cpu_times=lambda: (0.0, 0.0),
        io_counters=lambda: SimpleNamespace(read_chars=0, write_chars=0, read_bytes=next(pages), write_bytes=0),
    )
    monkeypatch.setattr(psutil, "Process", lambda _: process)
    context: Any = SimpleNamespace(started=[SimpleNamespace(pid=1)])
    busy = IdleTime(partial(cpu_seconds_and_transferred_bytes, context))
    assert busy.seconds_without_work(60.0) == 0.0


class Elsewhere:
    """Runs each job as another machine would: functions, jobs and results cross over as bytes, and each job twice."""

    def __init__(self, *_: object):
        self.names: set[str] = set()

    def __enter__(self) -> "Elsewhere":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def share(self, folders: Sequence[JobFolder]) -> None:
        self.folders = {folder.knob: folder.path for folder in folders}

    def map(self, function: Callable[[Job], Result], jobs: Iterable[Job], are_short: bool = False) -> Iterator[Result]:
        for job in jobs:
            self._sent(function, job)
            yield self._sent(function, job)

    def start(self, function: Callable[[Job], Result], job: Job) -> "Future[Result]":
        future: Future[Result] = Future()
        future.set_result(self._sent(function, job))
        return future

    def result(self, future: "Future[Result]") -> Result:
        return future.result()

    def _sent(self, function: Callable[[Job], Result], job: Job) -> Result:
        run, sent = pickle.loads(pickle.dumps((function, job)))
        inner = run.args[0] if isinstance(run, partial) and run.func is call_counting_read_bytes else run
        self.names.add(getattr(inner, "__name__", "partial"))
        result: Result = pickle.loads(pickle.dumps(run(sent)))
        return result


@pytest.mark.long("two whole runs with nothing cached")
def test_an_executor_of_another_kind_packs_the_same_bytes(
    config: Callable[..., PackConfig],
    demo: tuple[Path, Path],
    own_cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A job that can't be pickled, or that does something else the second time, would fail on a cluster alone."""
    pytest.importorskip("megatron.energon", reason="Energon opens what is packed")
    settings: dict[str, Any] = {
        "packing__max_token_len": 512,
        "packing__overlong": "split_turns",
        "output__max_shard_packs": 4,
        "measure__verify": 0.01,
    }
    one_tar = str(min(demo[0].glob("*.tar")))
    local = config(one_tar, **settings, cache_dir=str(own_cache))
    pack(local)
    elsewhere = Elsewhere()
    monkeypatch.setattr(PIPELINE, "executor_of", lambda *_: elsewhere)
    remote = config(one_tar, **settings, cache_dir=str(tmp_path / "other"), output__dir=str(tmp_path / "other" / "out"))
    pack(remote)
    assert files(Path(remote.output.dir) / "packed") == files(Path(local.output.dir) / "packed")
    stages = {"_index_job", "partial", "measure", "import_energon_if_needed", "write_shard", "check_readable"}
    assert elsewhere.names >= {*stages, "compare_with_full_processor"}
