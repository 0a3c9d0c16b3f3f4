"""A run that submits itself to Slurm, waits, and ends as its tasks end; and how far one is."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.packed import files
from support.running import run_here
from support.slurm import slurm_stand_in

SUBMITTED = ("executor=slurm", "executor.num_workers=1", "executor.sbatch=--exclusive", "executor.num_nodes=2")


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm_stand_in(monkeypatch, tmp_path)
    for module in ("slurm", "status"):
        monkeypatch.setattr(f"energon_pack.run.executors.shared.{module}._ASK_SECONDS", 1.0, raising=False)


@pytest.mark.usefixtures("slurm")
def test_what_was_submitted_packs_the_same_bytes(demo: tuple[Path, Path], tmp_path: Path) -> None:
    """Users of a cluster have one command, as those of a laptop: its exit code says whether there is a dataset."""
    source, processor = demo
    common = ("+model=qwen2_5_vl", f"model.processor={processor}", f"source.path={source}", "output.name=packed")
    assert run_here(*common, "output.dir=local", cwd=tmp_path)[0] == 0
    code, said, errors = run_here(*common, "output.dir=nodes", *SUBMITTED, cwd=tmp_path)
    assert code == 0, said + errors
    assert "submitted as Slurm's job" in said
    assert "done, by" in said
    assert files(tmp_path / "nodes" / "packed") == files(tmp_path / "local" / "packed")
    code, said, _ = run_here(*common, "output.dir=nodes", "executor=slurm", "--status", cwd=tmp_path)
    assert code == 0
    assert said.startswith("done, by")
    assert run_here(*common, "output.dir=other", "executor=slurm", "--status", cwd=tmp_path)[:2] == (
        1,
        "nobody has begun\n",
    )


@pytest.mark.usefixtures("slurm")
def test_a_task_that_fails_fails_the_command(tmp_path: Path) -> None:
    """Losing samples with exit code 0 is what peers do."""
    (tmp_path / "bad.tar").write_bytes(b"no tar" * 1000)
    code, _, errors = run_here("+model=qwen2_5_vl", "source.path=bad.tar", *SUBMITTED, cwd=tmp_path)
    assert code == 1
    assert re.search(r"damaged tar .*bad\.tar.* \(on ", errors)


@pytest.mark.usefixtures("slurm")
def test_tasks_that_are_gone_are_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that ran out of its hours leaves nobody to say so."""
    monkeypatch.setattr(sys, "executable", "/bin/true")
    code, _, errors = run_here("+model=qwen2_5_vl", *SUBMITTED, cwd=tmp_path)
    assert code == 1
    assert "is over, and the run is not" in errors


def test_what_can_not_be_submitted_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "there is no sbatch here" in run_here("+model=qwen2_5_vl", *SUBMITTED, cwd=tmp_path)[2]
    refuses = tmp_path / "sbatch"
    refuses.write_text(f"#!{sys.executable}\nimport sys\nsys.exit('sbatch: error: invalid partition specified: x')\n")
    refuses.chmod(0o755)
    assert "invalid partition specified: x" in run_here("+model=qwen2_5_vl", *SUBMITTED, cwd=tmp_path)[2]
    assert "needs executor.num_nodes=N" in run_here("+model=qwen2_5_vl", *SUBMITTED[:-1], cwd=tmp_path)[2]
    errors = run_here("+model=qwen2_5_vl", "--status", cwd=tmp_path)[2]
    assert "--status tells of a run with executor=slurm" in errors


@pytest.mark.usefixtures("slurm")
def test_one_may_look_at_what_is_not_waited_for(tmp_path: Path) -> None:
    code, said, _ = run_here("+model=qwen2_5_vl", *SUBMITTED, "executor.wait=false", cwd=tmp_path)
    assert code == 0
    assert "--status" in said
    (job,) = re.findall(r"Slurm's job (\d+);", said)
    end, lines = time.monotonic() + 60, ""
    while not lines.startswith("done, by") and time.monotonic() < end:
        _, lines, _ = run_here("+model=qwen2_5_vl", "executor=slurm", "--status", cwd=tmp_path)
    assert lines.startswith("done, by"), lines
    while subprocess.run(["squeue", "--noheader", "--jobs", job], capture_output=True, check=True).stdout:
        time.sleep(0.1)  # a task that is still there would take over
    # what was killed says nothing any more
    (meeting,) = (tmp_path / "packed" / ".cache" / "meetings").iterdir()
    (end_of,) = (meeting / "terms").glob("*.end")
    end_of.unlink()
    code, said, _ = run_here("+model=qwen2_5_vl", "executor=slurm", "--status", cwd=tmp_path)
    assert code == 1
    assert "gives no sign of life" in said
