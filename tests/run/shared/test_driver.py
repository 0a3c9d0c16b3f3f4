"""The executor of many machines, in small: jobs are dealt to machines, and what comes of them is taken in, in order."""

import errno
import json
import os
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from threading import Event, Thread
from typing import Any, cast

import psutil
import pytest

from energon_pack import __version__
from energon_pack.errors import PackError, check_buffer_size, short
from energon_pack.run.executors.local import WorkerKilled
from energon_pack.run.executors.shared import driver, folder
from energon_pack.run.executors.shared.driver import Deposed, SharedExecutor
from energon_pack.run.executors.shared.folder import names_in, write
from energon_pack.run.executors.shared.node import Node, do
from energon_pack.run.executors.shared.terms import Term, claim_term
from energon_pack.run.executors.shared.wire import encode
from energon_pack.run.files import digest_of, write_whole
from support.nodes import hurry

ABOUT = {"settings": "s", "version": __version__}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


@pytest.fixture
def term(tmp_path: Path) -> Term:
    term = claim_term(tmp_path, None, ABOUT)
    assert term is not None
    return term


class Machine:
    """One that says that it works; its jobs are done when a test has them done."""

    def __init__(self, term: Term, name: str, num_workers: int = 1, version: str = __version__):
        self.run, self.name = term.run, name
        self._about, self._number = {"num_workers": num_workers, "version": version}, 0
        self.run.inbox(name).mkdir(parents=True)
        self.beat()

    def beat(self) -> None:
        self._number += 1
        write(self.run.nodes / f"{self.name}.json", json.dumps({**self._about, "beat": self._number}).encode())

    @property
    def jobs(self) -> list[str]:
        return names_in(self.run.inbox(self.name))

    def do(self, name: str) -> None:
        try:
            do(self.run.inbox(self.name) / name, self.run.results)
        except ValueError as error:
            write(self.run.results / name, encode(("error", error)))
        (self.run.inbox(self.name) / name).unlink(missing_ok=True)

    def do_all(self) -> None:
        self.beat()
        for name in reversed(self.jobs):
            self.do(name)


@contextmanager
def at_work(*actions: Callable[[], None]) -> Iterator[None]:
    """Have these done again and again, as long as the `with` lasts."""
    ended = Event()

    def run() -> None:
        while not ended.wait(0.01):
            for action in actions:
                action()

    thread = Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def executor(term: Term, lost_after: float = 30.0) -> SharedExecutor:
    return SharedExecutor(term, lost_after, lambda: None)


def test_results_come_in_the_order_of_the_jobs(term: Term) -> None:
    machines = Machine(term, "a", 2), Machine(term, "b")
    with at_work(*(machine.do_all for machine in machines)), executor(term) as there:
        assert list(there.map(short, range(50))) == [str(number) for number in range(50)]
    assert not names_in(term.run.results)


def test_jobs_are_not_taken_ahead_of_the_machines(term: Term) -> None:
    """A billion samples are a million jobs: neither they nor their results pile up."""
    machine = Machine(term, "a", 3)
    taken: list[int] = []

    def jobs() -> Iterator[int]:
        for number in range(1000):
            taken.append(number)
            yield number

    with executor(term) as there:
        results = there.map(short, jobs())
        with at_work(machine.do_all):
            assert next(results) == "0"
        assert len(taken) <= 12  # two a process at work, and as many results that wait
        cast(Generator[str, None, None], results).close()
        assert machine.jobs == []


def test_an_error_of_a_job_comes_with_its_type_and_others_are_not_begun(term: Term) -> None:
    machine = Machine(term, "a")
    with executor(term) as there:
        results = there.map(partial(check_buffer_size, "size"), [1, 0, 1, 1])
        with at_work(machine.do_all):
            assert next(results) is None
            with pytest.raises(ValueError, match="size=0: a whole number"):
                next(results)
        assert machine.jobs == []


def test_the_jobs_of_a_machine_that_is_lost_are_done_by_another(term: Term) -> None:
    lost, other = Machine(term, "a"), Machine(term, "b")
    with at_work(other.do_all), executor(term, 0.5) as there:
        assert list(there.map(short, range(10))) == [str(number) for number in range(10)]
    assert lost.jobs  # it had some


def test_one_that_ends_is_not_waited_for(term: Term) -> None:
    """Slurm takes a node back: it says so, and nobody waits until it counts as lost."""
    leaving, other = Machine(term, "a"), Machine(term, "b")
    with executor(term) as there:
        results = there.map(short, range(6))
        with at_work(other.do_all, lambda: (term.run.nodes / "a.json").unlink(missing_ok=True)):
            assert len(list(results)) == 6
    assert leaving.name == "a"


def test_one_that_was_away_is_lost_with_its_jobs_a_second_time(term: Term) -> None:
    """Comes back, is given nothing new, and is gone for good: what it had before must not be waited for."""
    away = Machine(term, "a")
    with executor(term, 0.4) as there:
        results = there.map(short, range(2))
        thread = ThreadPoolExecutor(1).submit(list, results)
        _until(lambda: len(away.jobs) == 2)
        _until(lambda: not names_in(term.run.nodes))  # it is lost, and there is no other
        away.beat()
        time.sleep(0.2)
        other = Machine(term, "b")
        with at_work(other.do_all):
            assert thread.result(20) == ["0", "1"]


def test_a_slow_machine_gets_help(term: Term, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one bad disk holds up a thousand nodes, at the end, and when all else waits for the oldest job."""
    monkeypatch.setattr(driver, "_TWICE_SECONDS", 0.3)
    slow, fast = Machine(term, "a"), Machine(term, "b")
    with at_work(slow.beat, fast.do_all), executor(term) as there:
        assert list(there.map(short, range(30))) == [str(number) for number in range(30)]
    for name in slow.jobs:  # what it did comes late, and disturbs nobody
        slow.do(name)
    with at_work(slow.do_all, fast.do_all), executor(term) as there:
        there._numbers = count(1000)
        assert list(there.map(short, range(5))) == [str(number) for number in range(5)]


def test_a_job_that_costs_machine_after_machine_ends_the_run(term: Term, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_MOST_LOST", 3)
    made: list[Machine] = []

    def next_one() -> None:
        if not names_in(term.run.nodes):
            made.append(Machine(term, f"m{len(made)}"))

    with (
        at_work(next_one),
        executor(term, 0.2) as there,
        pytest.raises(PackError, match=r"3 machines were lost while they did the same job \(m0, m1, m2\)"),
    ):
        list(there.map(short, [1]))


def test_machines_of_another_version_are_given_nothing(term: Term) -> None:
    """One node that was not updated would fail the run of all."""
    other = Machine(term, "a", 8, "0.0.1")
    machine = Machine(term, "b")
    with at_work(other.beat, machine.do_all), executor(term) as there:
        assert len(list(there.map(short, range(5)))) == 5
    assert other.jobs == []


def test_another_driver_is_noticed(term: Term) -> None:
    machine = Machine(term, "a")
    with executor(term) as there:
        results = there.map(short, range(100))
        with at_work(machine.do_all):
            next(results)
            assert claim_term(term.folder, term, ABOUT) is not None
            with pytest.raises(Deposed, match="another process drives this run now"):
                list(results)


def test_a_result_that_is_gone_or_damaged_is_made_again(term: Term) -> None:
    """NFS says ESTALE of a file that another machine writes a second time; a server may lose the end of one."""
    machine = Machine(term, "a")
    bad = iter([b"", b"energon_pack job\n", b"x" * 100])

    def spoil() -> None:
        machine.beat()
        for name in machine.jobs:
            machine.do(name)
            if name == "000000003" and (data := next(bad, None)) is not None:
                write(term.run.results / name, data)

    with at_work(spoil), executor(term) as there:
        assert list(there.map(short, range(6))) == [str(number) for number in range(6)]


def test_a_job_that_is_cut_or_gone_is_sent_again(term: Term, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that went down, and is back, may have lost it; a node that reads half of it is no end of the run."""
    monkeypatch.setattr(driver, "_TWICE_SECONDS", 0.2)
    machine = Machine(term, "a")
    spoiled: list[str] = []

    def spoil() -> None:
        machine.beat()
        for name in machine.jobs:
            path = term.run.inbox("a") / name
            if name in ("000000001", "000000002") and name not in spoiled:
                spoiled.append(name)
                if name == "000000001":
                    write(path, path.read_bytes()[:40])
                else:
                    path.unlink()
                    continue
            machine.do(name)

    with at_work(spoil), executor(term) as there:
        assert list(there.map(short, range(6))) == [str(number) for number in range(6)]
    assert spoiled == ["000000001", "000000002"]


def test_a_job_that_is_lost_again_and_again_ends_the_run(term: Term, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_TWICE_SECONDS", 0.05)
    machine = Machine(term, "a")

    def clear() -> None:
        machine.beat()
        for name in machine.jobs:
            (term.run.inbox("a") / name).unlink(missing_ok=True)

    with (
        at_work(clear),
        executor(term) as there,
        pytest.raises(PackError, match="000000000: it is gone: something changes or removes files in"),
    ):
        list(there.map(short, range(3)))


def test_a_run_for_which_no_machine_is_fit_ends(term: Term) -> None:
    """It waited for ever, where the code of a checkout was changed between the starts of two processes."""
    write(term.run.nodes / "a.json", json.dumps({"version": __version__, "unfit": "a has pyarrow 1"}).encode())
    with executor(term, 0.3) as there, pytest.raises(PackError, match="no machine is fit for this run: a has pyarrow"):
        list(there.map(short, range(3)))


def test_a_file_system_with_bad_moments(term: Term, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any read, list or write may find a file or a folder gone that is there a moment later."""
    chance = Random(1)
    gone = OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    def shaky(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            if chance.random() < 0.1:
                raise gone if chance.random() < 0.5 else FileNotFoundError(errno.ENOENT, "No such file or directory")
            return function(*arguments, **more)

        return call

    monkeypatch.setattr(os, "listdir", shaky(os.listdir))
    monkeypatch.setattr(folder, "write_whole", shaky(write_whole))
    monkeypatch.setattr(Path, "read_bytes", shaky(Path.read_bytes))
    monkeypatch.setattr(SharedExecutor, "refuse_deposed", lambda _: None)
    monkeypatch.setattr(driver, "_MOST_LOST", 1000)
    ended = Event()
    machine = ThreadPoolExecutor(1).submit(Node(term, 1, ended).work)
    with executor(term, 5.0) as there:
        for number, result in enumerate(there.map(short, range(40))):
            assert result == str(number)
            assert not machine.done(), machine.result()
    ended.set()
    machine.result(20)


def test_names_that_nfs_makes_are_no_jobs_and_no_results(term: Term) -> None:
    """A file that is removed while it is read stays there as `.nfs…`."""
    machine = Machine(term, "a")
    for place in (term.run.results, term.run.nodes, term.run.inbox("a")):
        (place / ".nfs000000000012ab34").write_bytes(b"{}")
        (place / "000000007.x.tmp").write_bytes(b"half")
    with at_work(machine.do_all), executor(term) as there:
        assert list(there.map(short, range(5))) == [str(number) for number in range(5)]
    assert [*there.nodes] == ["a"]


@pytest.mark.parametrize("kills", ["always", "once"])
def test_a_job_that_kills_its_process(term: Term, tmp_path: Path, kills: str) -> None:
    """For memory, most often: at last it is tried alone; one that kills alone, too, ends the run.

    One kill costs no more than that: all processes of the node go on.
    """
    ended = Event()
    node = Node(term, 2, ended)
    work = ThreadPoolExecutor(1).submit(node.work)
    victims: list[psutil.Process] = []
    at_once = [0]  # processes, since the first kill

    def kill() -> None:
        children = psutil.Process().children(recursive=True)
        busy = [one for one in children if "spawn_main" in " ".join(one.cmdline()) and one not in before]
        if victims:
            at_once.append(len(busy))
        if busy and (kills == "always" or not victims) and names_in(node._inbox):
            before.update(busy)
            victims.append(busy[0])
            busy[0].kill()

    def careful() -> None:
        with suppress(psutil.Error):
            kill()

    before: set[psutil.Process] = set()
    try:
        with at_work(careful), executor(term) as there:
            results = there.map(digest_of, [_file(tmp_path, number) for number in range(4)])
            if kills == "always":
                with pytest.raises(WorkerKilled, match=r"a smaller executor\.num_workers"):
                    list(results)
            else:
                assert len(list(results)) == 4
                assert max(at_once) == 2
    finally:
        ended.set()
        work.result(30)
    assert victims


def _file(folder: Path, number: int) -> Path:
    path = folder / f"{number}.bin"
    path.write_bytes(bytes(10))
    return path


def _until(is_so: Callable[[], object], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)
