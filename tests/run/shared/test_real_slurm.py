"""Slurm itself, as a distribution has it: tasks that are cancelled, killed and requeued, and the same bytes."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.nodes import write_texts
from support.packed import files
from support.real_slurm import RealSlurm, path_of, real_slurm
from support.running import ROOT, run_here, start_alone

pytestmark = pytest.mark.slow
SETTINGS = ("output.name=packed", "output.max_shard_packs=60", "packing.max_token_len=4096", "measure.verify=0")
SHARED = ("executor=slurm", "executor.num_workers=1", "executor.lost_after=5")


@pytest.fixture
def slurm(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[RealSlurm]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with real_slurm(tmp_path_factory.mktemp("slurm"), monkeypatch) as slurm:
        yield slurm


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory, demo: tuple[Path, Path]) -> tuple[str, ...]:
    source = write_texts(tmp_path_factory.mktemp("texts"), 16, 2000, 120)
    return ("+model=qwen2_5_vl", f"model.processor={demo[1]}", f"source.path={source}", *SETTINGS)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, command: tuple[str, ...]) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("local")
    code, _, errors = run_here(*command, f"output.dir={folder}", cwd=ROOT)
    assert code == 0, errors
    return files(folder / "packed")


def _until(is_so: Callable[[], object], run: "subprocess.Popen[str]", seconds: float = 200) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        if run.poll() or time.monotonic() > end:
            run.kill()
            raise AssertionError("".join(run.communicate()))
        time.sleep(0.2)


def test_an_array_whose_tasks_are_cancelled_killed_and_requeued(
    slurm: RealSlurm, command: tuple[str, ...], expected: dict[str, bytes], tmp_path: Path
) -> None:
    submitted = (
        'executor.sbatch="--cpus-per-task=1 --requeue"',
        "executor.num_nodes=4",
        f"output.dir={tmp_path / 'out'}",
    )
    run = start_alone(*command, *SHARED, *submitted, cwd=tmp_path)
    _until(lambda: len(slurm.say("squeue", "-h", "-t", "R", "-o", "%i").split()) == 4, run)
    lines = slurm.say("squeue", "-h", "-o", "%i %N").splitlines()
    jobs = {node: job for job, node in map(str.split, lines)}
    assert sorted(jobs) == ["n1", "n2", "n3", "n4"]
    _until(lambda: [*(tmp_path / "out" / ".cache" / "lengths").glob("*/*.parquet")], run)  # it measures
    assert slurm.say("scancel", jobs["n1"]) == slurm.say("scontrol", "requeue", jobs["n2"]) == ""
    time.sleep(3)
    slurm.kill_node("n3")
    staging = tmp_path / "out" / ".staging"
    _until(lambda: [*staging.glob("*/*.tar.idx")], run)  # it writes
    slurm.start_node("n3")
    assert slurm.processes("n4")
    for process in slurm.processes("n4"):
        process.kill()
    said, errors = run.communicate(timeout=300)
    print(said, errors, slurm.say("squeue"))
    assert run.returncode == 0, said + errors
    assert files(tmp_path / "out" / "packed") == expected
    _until(lambda: not slurm.say("squeue", "-h"), run)  # a task that comes late ends as the others did
    assert not staging.exists()


def test_a_step_of_a_job(
    slurm: RealSlurm, command: tuple[str, ...], expected: dict[str, bytes], tmp_path: Path
) -> None:
    """`srun` is one command: all tasks end with it, by the same exit code."""
    arguments = (sys.executable, "-m", "energon_pack", *command, *SHARED, f"output.dir={tmp_path / 'out'}")
    said = slurm.say(path_of("srun"), "--nodes=4", "--ntasks-per-node=1", *arguments)
    assert said.count("drives this run, and this machine works for it") == 3, said
    assert files(tmp_path / "out" / "packed") == expected
