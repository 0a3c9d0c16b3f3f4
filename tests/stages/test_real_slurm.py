"""Slurm itself, as a distribution has it: faults of tasks, nodes and its controller, and the same bytes."""

import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest

from energon_pack.errors import PackError
from energon_pack.run.executors.settings import ExecutorConfig, ExecutorKind
from energon_pack.run.executors.slurm import PUBLISH, SlurmJobChain
from support.packed import files
from support.real_slurm import RealSlurm, real_slurm
from support.running import ROOT, run_here, start_alone
from support.texts import write_texts

pytestmark = pytest.mark.slow
SETTINGS = ("output.name=packed", "output.max_shard_packs=40", "packing.max_token_len=4096", "measure.verify=0")
SHARED = ("executor=slurm", "executor.num_workers=1", "executor.num_tasks=8")


@pytest.fixture
def slurm(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[RealSlurm]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with real_slurm(tmp_path_factory.mktemp("slurm"), monkeypatch) as slurm:
        yield slurm


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory, demo: tuple[Path, Path]) -> tuple[str, ...]:
    source = write_texts(tmp_path_factory.mktemp("texts"), 16, 1000, 120)
    return ("+model=qwen2_5_vl", f"model.processor={demo[1]}", f"source.path={source}", *SETTINGS)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, command: tuple[str, ...]) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("local")
    code, _, errors = run_here(*command, f"output.dir={folder}", cwd=ROOT)
    assert code == 0, errors
    return files(folder / "packed")


class Runs:
    """The same command again and again, until the dataset is there."""

    def __init__(self, slurm: RealSlurm, command: tuple[str, ...], folder: Path):
        self.slurm, self.folder = slurm, folder
        self.command = (*command, *SHARED, f"output.dir={folder / 'out'}")
        self.num_faults = 0

    def run(self, stage: str, fault: Callable[[], None], *settings: str) -> tuple[int, str]:
        """Wait until a task of a stage works, do harm, and wait for the end; exit code and what was printed."""
        run = start_alone(*self.command, *settings, cwd=self.folder)
        begun = time.monotonic()
        self.until(lambda: self.tasks(stage), run)
        time.sleep(1.0 if stage in ("lengths", "write") else 0.4)  # planning and publishing take seconds
        fault()
        self.num_faults += 1
        said, errors = run.communicate(timeout=500)
        last = (errors or said).strip().splitlines()[-1]
        name = getattr(fault, "__name__", "restart_node")
        print(f"{stage:8} {name:20} exit {run.returncode}, {time.monotonic() - begun:3.0f} s: {last}")
        self.until(lambda: not self.slurm.say("squeue", "-h") or fault == self.slurm.stop_controller)
        return run.returncode, said + errors

    def tasks(self, stage: str) -> list[tuple[str, str]]:
        """The number and the node of each task of a stage that runs."""
        lines = self.slurm.say("squeue", "-h", "-t", "R", "-n", f"energon-pack-{stage}", "-o", "%i %N").splitlines()
        return [(line.split()[0], line.split()[1]) for line in lines]

    @staticmethod
    def until(is_so: Callable[[], object], run: "subprocess.Popen[str] | None" = None) -> None:
        end = time.monotonic() + 400
        while not is_so():
            if (run and run.poll() is not None) or time.monotonic() > end:
                raise AssertionError("".join(run.communicate()) if run else "never")
            time.sleep(0.1)

    def check(self, expected: dict[str, bytes]) -> None:
        assert files(self.folder / "out" / "packed") == expected
        left = {path.name for path in (self.folder / "out").iterdir()}
        assert left <= {"packed", "packed.plan.html", ".cache"}
        assert not [*self.folder.rglob(".seen-by-all-*")]


@pytest.fixture
def runs(slurm: RealSlurm, command: tuple[str, ...], tmp_path: Path) -> Runs:
    (tmp_path / "50%a").mkdir()  # Slurm replaces %a in the names of logs
    return Runs(slurm, command, tmp_path / "50%a")


def _kill(runs: Runs, stage: str, whole_node: bool = False) -> str:
    """End what runs on the node of the first task; the name of the node."""
    _, node = runs.tasks(stage)[0]
    if whole_node:
        runs.slurm.kill_node(node)
    else:
        runs.until(lambda: _kill_commands(runs.slurm.processes(node)))
    return node


def _kill_commands(processes: list[psutil.Process]) -> bool:
    """Kill the command of a task; False: it has not begun."""
    is_killed = False
    for process in processes:
        with suppress(psutil.Error):
            if "energon_pack" in process.cmdline():
                process.kill()
                is_killed = True
    return is_killed


def test_faults_that_end_the_chain_and_the_same_command_goes_on(runs: Runs, expected: dict[str, bytes]) -> None:
    """Tasks that are cancelled or killed, at each stage, twice each: the command says which log, and goes on."""

    def cancel() -> None:
        assert runs.slurm.say("scancel", runs.tasks(stage)[0][0]) == ""

    def kill() -> None:
        _kill(runs, stage)

    for stage in ("lengths", "plan", "write", "publish"):
        for fault in (cancel, kill):
            if stage == "plan":
                shutil.rmtree(runs.folder / "out" / ".staging", ignore_errors=True)  # it may have left the plan
            code, said = runs.run(stage, fault)
            assert code == 1, said
            assert f"/{stage}" in said.splitlines()[-1]
            assert ".log)" in said.splitlines()[-1]
    # what was written before is not written again
    code, said = runs.run("publish", _nothing)
    assert code == 0
    runs.check(expected)
    assert runs.num_faults == 9


def test_faults_that_slurm_mends(runs: Runs, expected: dict[str, bytes]) -> None:
    """A task is requeued, a node loses power, the controller is started again: the command waits on, and ends well."""

    def requeue() -> None:
        assert runs.slurm.say("scontrol", "requeue", runs.tasks(stage)[0][0]) == ""

    def lose_power() -> None:
        node = _kill(runs, stage, whole_node=True)
        time.sleep(3)
        runs.slurm.start_node(node)

    def restart_controller() -> None:
        runs.slurm.restart_controller()

    for fault in (requeue, lose_power, restart_controller):
        for stage in ("lengths", "plan", "write", "publish"):
            code, said = runs.run(stage, fault)
            assert code == 0, f"{fault.__name__} at {stage}: {said}"
            runs.check(expected)
            if stage in ("lengths", "publish") or fault is restart_controller:
                shutil.rmtree(runs.folder / "out")
            else:
                shutil.rmtree(runs.folder / "out" / "packed")
    assert runs.num_faults == 12


def test_a_controller_that_does_not_come_back(runs: Runs, expected: dict[str, bytes]) -> None:
    """The command says so and ends; with Slurm back, the same command waits for the jobs that went on."""
    code, said = runs.run("lengths", runs.slurm.stop_controller, "executor.give_up_after=5")
    assert code == 1, said
    assert "Slurm has not answered for 5 s" in said.splitlines()[-1]
    runs.slurm.start_controller()
    assert runs.run("publish", _nothing)[0] == 0
    runs.check(expected)


@pytest.mark.parametrize(
    ("options", "then", "reason"),
    [
        (["--hold"], [], "JobHeldUser"),
        (["--hold"], ["hold"], "JobHeldAdmin"),
        ([], ["requeuehold"], "job requeued in held state|JobHeld"),
        (["--dependency=afterok:FAILED"], [], "DependencyNeverSatisfied"),
    ],
)
def test_a_task_that_slurm_holds(
    slurm: RealSlurm, tmp_path: Path, options: list[str], then: list[str], reason: str
) -> None:
    """The waiting ends with Slurm's own reason; once released, the same wait goes on."""

    def submitted(program: str, *options: str) -> str:
        script = tmp_path / "job.sh"
        script.write_text(f"#!/bin/sh\n{program}\n")
        return slurm.say("sbatch", "--parsable", "--output=/dev/null", *options, str(script))

    chain = SlurmJobChain(ExecutorConfig(ExecutorKind.slurm), tmp_path, ["python"])
    published = f"touch {tmp_path}/published"
    failed = submitted("exit 1") if "FAILED" in str(options) else ""
    work = f"sleep 20 && {published}" if then == ["requeuehold"] else published
    job = submitted(work, *(option.replace("FAILED", failed) for option in options))
    for command in then:
        if command == "requeuehold":
            Runs.until(lambda: slurm.say("squeue", "-h", "-j", job, "-o", "%T") == "RUNNING")
        slurm.say("scontrol", command, job)
    with pytest.raises(PackError, match=rf"does not start publish \(job {job}\): .*({reason})"):
        chain.wait({PUBLISH: job}, str)
    if failed:
        slurm.say("scancel", job)
        return
    slurm.say("scontrol", "release", job)
    chain.wait({PUBLISH: job}, str)


def test_a_node_that_is_not_like_the_others(runs: Runs, expected: dict[str, bytes]) -> None:
    """One that does not see the folder, and one with other code: a line says so, and bytes stay the same."""
    (runs.folder / "out").mkdir()
    other = runs.folder / "errors.py"
    other.write_text((ROOT / "energon_pack" / "errors.py").read_text() + "# another version\n")
    hidden = f"mount -t tmpfs none {runs.folder / 'out'}"
    elsewhere = f"mount --bind {other} {ROOT / 'energon_pack' / 'errors.py'}"
    for stage, mounts, why in (
        ("lengths", hidden, "a node does not see that folder"),
        ("plan", hidden, "a node does not see that folder"),
        ("write", elsewhere, "instead of"),
    ):
        if stage == "plan":  # the node is another one when shards are written
            code, said = runs.run(stage, partial(runs.slurm.restart_node, "n1", mounts))
        else:
            runs.slurm.restart_node("n1", mounts)
            code, said = runs.run(stage, _nothing)
        assert code == 1, said
        assert why in said.splitlines()[-1]
        assert "Traceback" not in said
        runs.slurm.restart_node("n1")
    assert runs.run("publish", _nothing)[0] == 0
    runs.check(expected)


def test_a_disk_that_is_full_in_one_task(runs: Runs, expected: dict[str, bytes]) -> None:
    """The command says so in a line; with room it goes on from what is there."""
    out = runs.folder / "out"
    out.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "none", str(out)], check=True)
    try:
        for size in ("400k", "1200k"):  # too small for lengths, and for shards
            subprocess.run(["mount", "-o", f"remount,size={size}", str(out)], check=True)
            code, said = runs.run("lengths", _nothing)
            assert code == 1, said
            assert re.search("No space left|are free|is the disk full", said.splitlines()[-1]), said
        subprocess.run(["mount", "-o", "remount,size=200m", str(out)], check=True)
        assert runs.run("publish", _nothing)[0] == 0
        runs.check(expected)
    finally:
        subprocess.run(["umount", "--lazy", str(out)], check=True)


def test_two_commands_with_one_output(runs: Runs, expected: dict[str, bytes]) -> None:
    """The second joins the first where it asks for the same, and is refused where it does not."""
    others: list[tuple[int, str]] = []

    def another() -> None:
        for settings in ((), ("seed=7",)):
            run = start_alone(*runs.command, *settings, cwd=runs.folder)
            said, errors = run.communicate(timeout=500)
            others.append((run.returncode, said + errors))

    assert runs.run("lengths", another)[0] == 0
    (joined, said), (refused, why) = others
    assert (joined, refused) == (0, 1), said + why
    assert "do this run already" in said
    assert len(why.strip().splitlines()) == 1
    runs.check(expected)


def _nothing() -> None:
    """No harm is done."""
