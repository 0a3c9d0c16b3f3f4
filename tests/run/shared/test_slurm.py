"""A run that submits itself to Slurm, waits, and ends as its tasks end; and how far one is."""

import re
import subprocess
import sys
import time
from pathlib import Path
from threading import Timer
from typing import Any

import pytest

from energon_pack.config.resolve import meeting_of
from energon_pack.errors import PackError
from energon_pack.run.executors.settings import ExecutorConfig, ExecutorKind
from energon_pack.run.executors.shared.slurm import launch_of, submit
from energon_pack.run.executors.shared.status import status_lines
from energon_pack.run.executors.shared.terms import claim_term
from energon_pack.run.executors.shared.together import Together
from energon_pack.run.progress import Progress
from support.packed import demo_config, files
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
    assert re.search(r"bad\.tar is not a tar file.* \(on ", errors)


@pytest.mark.usefixtures("slurm")
def test_tasks_that_are_gone_are_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that ran out of its hours leaves nobody to say so."""
    monkeypatch.setattr(sys, "executable", "/bin/true")
    code, _, errors = run_here("+model=qwen2_5_vl", *SUBMITTED, cwd=tmp_path)
    assert code == 1
    assert "is over, and the run is not" in errors


@pytest.mark.usefixtures("slurm")
def test_tasks_may_join_a_run_that_is_at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who gives the command a second time to wait for the first hears how that ended."""
    submitted = demo_config((tmp_path, tmp_path), tmp_path, tmp_path)
    submitted.executor = ExecutorConfig(ExecutorKind.slurm, sbatch="--exclusive", num_nodes=2)
    meeting = meeting_of(submitted)
    term = claim_term(meeting.folder, None, {"settings": meeting.settings, "host": "one", "launch": "first"})
    assert term is not None
    monkeypatch.setattr(sys, "executable", "/bin/true")
    ending = Timer(0.5, term.end, ({"exit_code": 0, "figures": {"packs": 3}},))
    ending.start()
    assert submit(submitted.executor, meeting.folder, meeting.settings, [sys.executable]) == {"packs": 3}
    ending.join()
    with pytest.raises(PackError, match="is over, and the run is not"):  # which ended before these were submitted
        submit(submitted.executor, meeting.folder, meeting.settings, [sys.executable])


@pytest.mark.usefixtures("slurm")
def test_what_waits_in_the_queue_is_not_taken_for_the_run_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--status` would say that it is done, hours before it begins."""
    monkeypatch.setattr(sys, "executable", "/bin/true")
    settings = ExecutorConfig(ExecutorKind.slurm, sbatch="--exclusive", num_nodes=2, wait=False)
    assert submit(settings, tmp_path, "settings", ["/bin/true"]) == {}
    lines, code = status_lines(tmp_path)
    assert (lines[0].partition("Slurm's job ")[0], code) == ("submitted as ", 1)
    term = claim_term(tmp_path, None, {"host": "one"})
    assert term is not None
    term.end({"exit_code": 0})
    assert status_lines(tmp_path) == (["done, by one (process None)"], 0)
    submit(settings, tmp_path, "settings", ["/bin/true"])
    assert status_lines(tmp_path)[0][0].endswith(", of which no task has begun")


def test_a_relative_source_is_another_one_in_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks do not work for a run that packs another source, and end as if theirs were packed."""
    told = set()
    for name in ("a", "b"):
        (tmp_path / name / "model").mkdir(parents=True)
        monkeypatch.chdir(tmp_path / name)
        for processor, source in (("hub/id", "/data"), ("hub/id", "data"), ("hub/id", ["data"]), ("model", "/data")):
            config = demo_config((tmp_path, Path(processor)), tmp_path, tmp_path, source)
            told.add(meeting_of(config).settings)
    assert len(told) == 7


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


@pytest.mark.parametrize(
    ("said", "launch"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "7"}, None),
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "4294967290"}, None),
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "2"}, "7.2"),
        ({"SLURM_JOB_ID": "8", "SLURM_ARRAY_JOB_ID": "7"}, "7"),
        ({"SLURM_JOB_ID": "8", "SLURM_ARRAY_JOB_ID": "7", "SLURM_STEP_ID": "0"}, "7.0"),
    ],
)
def test_each_step_of_an_allocation_is_a_launch(
    said: dict[str, str], launch: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that failed, and is given in the same allocation once more, does not end as it did."""
    for name in ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_ARRAY_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    assert launch_of(ExecutorConfig()) == launch
    assert launch_of(ExecutorConfig(launch="own")) == "own"


@pytest.mark.usefixtures("slurm")
def test_a_config_of_the_users_own_is_submitted_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "mine.yaml").write_text(
        "defaults: [config, _self_]\noutput: {name: mine, shard_prefix: own}\n"
    )
    mine = ("--config-dir=conf", "--config-name=mine", "+model=qwen2_5_vl", *SUBMITTED)
    code, said, errors = run_here(*mine, cwd=tmp_path)
    assert code == 0, said + errors
    assert list((tmp_path / "packed" / "mine").glob("own-*.tar"))


def test_an_outcome_is_that_of_the_same_settings_alone(tmp_path: Path) -> None:
    """One who comes late is done as the others are, where they did what it is to do."""
    progress = Progress(("plan",))

    def figures(settings: str, packs: int) -> dict[str, Any]:
        return Together(tmp_path, settings, 1, 5.0, "one").run(lambda _: {"packs": packs}, progress)

    assert figures("short packs", 2) == {"packs": 2}
    assert figures("short packs", 0) == {"packs": 2}
    assert figures("long packs", 1) == {"packs": 1}
