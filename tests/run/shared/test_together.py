"""Who drives and who follows, in small: each test is several tasks, in threads or in processes of their own."""

import json
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from threading import Barrier, Event
from typing import Any

import pytest

from energon_pack import __version__
from energon_pack.dataset.publish import staging_folder
from energon_pack.errors import PackError, SamplesLost, short
from energon_pack.run.executors.admission import Terms
from energon_pack.run.executors.shared import beats, together
from energon_pack.run.executors.shared.beats import Beat, Watched, here, is_dead
from energon_pack.run.executors.shared.driver import Deposed, SharedExecutor
from energon_pack.run.executors.shared.folder import write
from energon_pack.run.executors.shared.terms import Term, claim_term, latest_term
from energon_pack.run.executors.shared.together import Together
from energon_pack.run.progress import Progress
from support.nodes import hurry
from support.running import PIPELINE, run_here

ABOUT = {"settings": "s", "version": __version__}
Figures = dict[str, Any]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


class _NoNode:
    """Instead of the process that does jobs: it beats for one that drives, and does nothing else."""

    def __init__(self, folder: Path, num_workers: int | None):
        self._folder = folder

    def keep(self) -> None:
        pass

    def __enter__(self) -> "_NoNode":
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def no_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("energon_pack.run.executors.shared.together._NodeProcess", _NoNode)


def _task(folder: Path, settings: str = "s", lost_after: float = 30.0, launch: str | None = None) -> Together:
    return Together(folder, settings, 1, lost_after, launch)


def _until(is_so: Callable[[], object], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_of_many_that_claim_one_wins(tmp_path: Path) -> None:
    """Two drivers would plan twice, and publish over each other."""
    barrier = Barrier(8)

    def claim(_: int) -> Term | None:
        barrier.wait()
        return claim_term(tmp_path, None, ABOUT)

    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            won = [term for term in pool.map(claim, range(8)) if term is not None]
            assert len(won) <= 1
    first = latest_term(tmp_path)
    assert first is not None
    assert first.number == 1
    second = claim_term(tmp_path, first, ABOUT)
    assert second is not None
    assert second.runs_before() == [first.run]
    assert first.runs_before() == []  # one that was away removes nothing of its successor


@pytest.mark.usefixtures("no_nodes")
def test_all_tasks_come_to_the_same_end(tmp_path: Path) -> None:
    """Also where it comes so soon that nobody saw the driver alive."""
    driven: list[int] = []
    met = Event()

    def drive(executor: SharedExecutor) -> Figures:
        driven.append(executor.term)
        met.wait(20)
        return {"packs": 7}

    with ThreadPoolExecutor(3) as pool:
        ends = [pool.submit(_task(tmp_path).run, drive, Progress(quiet=True)) for _ in range(3)]
        _until(lambda: driven)
        time.sleep(0.3)
        met.set()
        assert [end.result(20) for end in ends] == [{"packs": 7}] * 3
    assert driven == [1]


@pytest.mark.parametrize(("error", "code"), [(PackError("bad tar"), 1), (SamplesLost("lost", "/p.html"), 3)])
@pytest.mark.usefixtures("no_nodes")
def test_all_tasks_come_to_the_same_error(tmp_path: Path, error: PackError, code: int) -> None:
    met = Event()

    def drive(_: SharedExecutor) -> Figures:
        met.wait(20)
        raise error

    with ThreadPoolExecutor(2) as pool:
        ends = [pool.submit(_task(tmp_path).run, drive, Progress(quiet=True)) for _ in range(2)]
        _until(lambda: latest_term(tmp_path))
        time.sleep(0.3)
        met.set()
        found = [end.exception(20) for end in ends]
    assert [getattr(one, "exit_code", None) for one in found] == [code, code]
    assert sum("(on " in str(one) for one in found) == 1  # the other one drove


@pytest.mark.usefixtures("no_nodes")
def test_a_late_task_of_the_same_launch_ends_as_the_others_did(tmp_path: Path) -> None:
    """A task that was requeued would else refuse the dataset that is there."""
    assert _task(tmp_path, launch="7").run(lambda _: {"packs": 7}, Progress(quiet=True)) == {"packs": 7}
    assert _task(tmp_path, launch="7").run(lambda _: {"packs": 0}, Progress(quiet=True)) == {"packs": 7}
    again = _task(tmp_path, launch="8").run(lambda _: {"packs": 8}, Progress(quiet=True))
    assert again == {"packs": 8}


@pytest.mark.usefixtures("no_nodes")
def test_after_an_interrupt_another_goes_on(tmp_path: Path) -> None:
    def interrupted(_: SharedExecutor) -> Figures:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _task(tmp_path, launch="7").run(interrupted, Progress(quiet=True))
    assert _task(tmp_path, launch="7").run(lambda _: {"packs": 7}, Progress(quiet=True)) == {"packs": 7}


@pytest.mark.usefixtures("no_nodes")
@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        ({"settings": "other"}, "packs there with other settings: wait for it, or choose another output.name"),
        ({"version": "0.0.1"}, "packs with energon_pack 0.0.1, and this is .*: install the same"),
    ],
)
def test_a_task_that_does_something_else_is_refused(tmp_path: Path, theirs: dict[str, str], said: str) -> None:
    term = claim_term(tmp_path, None, {**here(), **ABOUT, **theirs})
    assert term is not None
    with Beat(term.beat, dict), pytest.raises(PackError, match=said):
        _task(tmp_path).run(lambda _: {}, Progress(quiet=True))


@pytest.mark.usefixtures("no_nodes")
def test_a_driver_that_is_lost_is_followed_by_another(tmp_path: Path) -> None:
    """On another machine: nothing but its silence tells."""
    lost = claim_term(tmp_path, None, {**ABOUT, "machine": "another", "pid": 1, "born": 1})
    assert lost is not None
    write(lost.beat, b"1")
    start = time.monotonic()
    assert _task(tmp_path, lost_after=0.5).run(lambda there: {"term": there.term}, Progress(quiet=True)) == {"term": 2}
    assert time.monotonic() - start >= 0.5
    assert not lost.beat.exists()


@pytest.mark.usefixtures("no_nodes")
def test_one_whose_end_can_not_be_said_does_not_wait_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node beats for it, and it is alive: it would follow itself for ever."""
    said: list[Mapping[str, Any]] = []
    monkeypatch.setattr(Term, "end", lambda _, outcome: said.append(outcome))

    def drive(executor: SharedExecutor) -> Figures:
        if executor.term == 1:
            raise Deposed("a listing of the folder was not whole")
        return {"term": executor.term}

    assert _task(tmp_path).run(drive, Progress(quiet=True)) == {"term": 2}
    assert len(said) == 2


@pytest.mark.usefixtures("no_nodes")
def test_a_claim_that_was_cut_short_is_no_end(tmp_path: Path) -> None:
    """A process that was killed between the two calls that make a file leaves an empty one."""
    (tmp_path / "terms").mkdir()
    (tmp_path / "terms" / "000001.json").touch()
    assert _task(tmp_path, lost_after=0.3).run(lambda there: {"term": there.term}, Progress(quiet=True)) == {"term": 2}


@pytest.mark.usefixtures("no_nodes")
def test_whatever_goes_wrong_for_one_that_was_away_is_no_end_of_the_run(tmp_path: Path) -> None:
    """Its successor took its folder: it follows, and comes to the end that all come to."""
    successor: list[Term] = []

    def drive(executor: SharedExecutor) -> Figures:
        term = claim_term(tmp_path, latest_term(tmp_path), {**here(), **ABOUT})
        assert term is not None
        successor.append(term)
        raise FileNotFoundError("its folder is gone")

    with ThreadPoolExecutor(1) as pool:
        end = pool.submit(_task(tmp_path).run, drive, Progress(quiet=True))
        _until(lambda: successor)
        with Beat(successor[0].beat, dict):
            time.sleep(0.3)
            successor[0].end({"exit_code": 0, "figures": {"packs": 7}, "host": "x"})
        assert end.result(20) == {"packs": 7}


@pytest.mark.usefixtures("no_nodes")
def test_what_a_lost_driver_left_in_the_folders_of_the_run_is_removed(tmp_path: Path) -> None:
    """On another machine: the next driver does not know that process, and knows its term."""
    lost = claim_term(tmp_path / "meeting", None, {**ABOUT, "machine": "another", "pid": 1, "born": 1})
    assert lost is not None
    mark, data = tmp_path / ".seen-by-all-7", tmp_path / "data"
    for path in (mark, data):
        path.touch()
    terms = Terms({}, "/", (("output.dir", str(mark)), ("source.path", str(data))))
    write(lost.run.terms, json.dumps(asdict(terms)).encode())
    assert _task(tmp_path / "meeting", lost_after=0.3).run(lambda _: {"packs": 7}, Progress(quiet=True))
    assert (mark.exists(), data.exists()) == (False, True)


@pytest.mark.usefixtures("no_nodes")
def test_what_was_about_to_be_published_is_told_to_one_who_goes_on_alone(tmp_path: Path) -> None:
    """Another run, or the same one begun anew, would else be done before it began."""

    def drive(executor: SharedExecutor) -> Figures:
        was_told = executor.note.exists()
        executor.note.write_bytes(b"report")
        return {"told": was_told}

    def told(settings: str) -> bool:
        return bool(_task(tmp_path, settings).run(drive, Progress(quiet=True))["told"])

    assert not told("s")
    _lose_driver(tmp_path)
    assert told("s")
    assert not told("s")
    _lose_driver(tmp_path)
    assert not told("other")


def _lose_driver(folder: Path) -> None:
    """As if the one that drove there was killed before it said what came of it."""
    end = sorted(folder.rglob("*.end"))[-1]
    end.unlink()
    about = end.with_suffix(".json")
    write(about, json.dumps({**json.loads(about.read_text()), "born": 1}).encode())


@pytest.fixture
def packs(demo: tuple[Path, Path], cache: Path, tmp_path: Path) -> Callable[..., tuple[int, str, str]]:
    """The same command once more, with some settings."""
    shutil.copytree(cache, tmp_path / ".cache")
    command = ("+model=qwen2_5_vl", f"model.processor={demo[1]}", f"source.path={demo[0]}", "output.name=packed")
    return lambda *more: run_here(*command, f"output.dir={tmp_path}", "executor=slurm", *more, cwd=tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("template")
def test_a_driver_that_was_lost_after_it_published_is_no_error(
    packs: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    """Its successor would refuse the dataset, as another's; every task would end with 1."""
    assert packs()[0] == 0
    _lose_driver(tmp_path)
    made = (tmp_path / "packed" / "report.json").stat().st_mtime_ns
    assert packs()[0] == 0
    assert (tmp_path / "packed" / "report.json").stat().st_mtime_ns == made
    code, _, errors = packs()  # that one said what came of it
    assert (code, "exists" in errors) == (1, True)


@pytest.mark.slow
@pytest.mark.usefixtures("template")
def test_one_that_was_away_may_publish_while_another_begins(
    packs: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other would write all anew, and then refuse what is there."""
    assert packs()[0] == 0
    _lose_driver(tmp_path)
    (tmp_path / "packed").rename(tmp_path / "soon")

    def appears(*arguments: Any) -> Any:
        (tmp_path / "soon").rename(tmp_path / "packed")
        return staging_folder(*arguments)

    monkeypatch.setattr(PIPELINE, "staging_folder", appears)
    code, _, errors = packs()
    assert code == 0, errors
    assert not (tmp_path / ".staging").exists()


def test_jobs_are_done_by_the_process_beside(tmp_path: Path) -> None:
    """One task that comes alone does all by itself; its node is started anew where it is killed."""

    def drive(executor: SharedExecutor) -> Figures:
        first = next(results := executor.map(short, range(30)))
        assert task._node._process is not None
        task._node._process.kill()
        return {"found": [first, *results]}

    task = _task(tmp_path, lost_after=2.0)
    assert task.run(drive, Progress(quiet=True)) == {"found": [str(number) for number in range(30)]}


def test_a_process_beside_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is done would else be waited for."""
    monkeypatch.setattr(together, "_END_SECONDS", 0.3)
    with together._NodeProcess(tmp_path, 1) as beside:
        process = beside._process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
    assert process.returncode == -signal.SIGKILL


def test_what_ends_the_process_beside_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It is started again: twenty tracebacks would hide what the run says."""
    (tmp_path / "terms").symlink_to("terms")  # a file system that answers with an error
    with together._NodeProcess(tmp_path, 1) as beside:
        assert beside._process is not None
        assert beside._process.wait(20) == 0
    said = capfd.readouterr()
    assert said.out.startswith("the process that does jobs ends: [Errno 40]")
    assert (said.out.count("\n"), said.err) == (1, "")


def test_a_beat_outlasts_a_folder_that_is_away(tmp_path: Path) -> None:
    """A machine that can't write once would count as lost for ever."""
    beat, moved = tmp_path / "there" / "beat", tmp_path / "moved"
    beat.parent.mkdir()
    with Beat(beat, dict):
        watched = Watched(beat, 0.4)
        _until(lambda: not watched.is_lost() and watched.lives)
        beat.parent.rename(moved)
        _until(watched.is_lost)
        assert watched.is_quiet
        moved.rename(beat.parent)
        _until(lambda: not watched.is_lost())


def test_a_process_that_is_no_more_is_told_from_its_successor() -> None:
    mine = here()
    assert not is_dead(mine)
    assert is_dead({**mine, "born": 1})
    assert is_dead({**mine, "pid": 2**22 + 1})
    assert not is_dead({**mine, "machine": "another", "born": 1})
    assert not is_dead({})
    assert beats._born(mine["pid"]) == mine["born"]
