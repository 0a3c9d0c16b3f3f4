"""A run by Slurm: the submitted jobs, the output of the waiting command, and a second start of the same command."""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from energon_pack.errors import PackError
from energon_pack.run.executors.admission import MachineTerms
from energon_pack.run.executors.settings import ExecutorConfig, ExecutorKind
from energon_pack.run.executors.slurm import LENGTHS, PUBLISH, WRITE, SlurmJobChain
from energon_pack.stages.chain import run_stages_as_slurm_jobs
from support.packed import demo_config, files
from support.running import ROOT, run_here


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `sbatch` and `squeue` be stand-ins that run jobs as processes of this machine, and answer as Slurm 22.05."""
    (tmp_path / "jobs").mkdir()
    monkeypatch.setenv("PATH", f"{ROOT / 'tests' / 'support' / 'slurm_stand_in'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_STAND_IN", str(tmp_path / "jobs"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("_CHECK_SECONDS", "_APPEARS_SECONDS"):
        monkeypatch.setattr(f"energon_pack.run.executors.slurm.{name}", 0.2)


def _chain(folder: Path, python: str = "python", **settings: object) -> SlurmJobChain:
    return SlurmJobChain(ExecutorConfig(ExecutorKind.slurm, **settings), folder, [python, "-m", "energon_pack"])  # type: ignore[arg-type]


def _sleeping(folder: Path) -> str:
    """A program that takes a second."""
    sleep = folder / "sleep"
    sleep.write_text("#!/bin/sh\nexec sleep 1\n")
    sleep.chmod(0o755)
    return str(sleep)


@pytest.mark.slow
@pytest.mark.usefixtures("slurm")
def test_a_chain_packs_the_same_bytes(demo: tuple[Path, Path], tmp_path: Path) -> None:
    """On a cluster, too, one command makes the dataset, and its exit code tells whether it exists."""
    common = ("+model=qwen2_5_vl", f"model.processor={demo[1]}", f"source.path={demo[0]}", "output.name=packed")
    submitted = (*common, "output.dir=nodes", "executor=slurm", "executor.num_tasks=2")
    assert run_here(*common, "output.dir=local", cwd=tmp_path)[0] == 0
    code, said, _ = run_here(*submitted, "executor.show=true", cwd=tmp_path)
    assert (code, said.count("#SBATCH --array=0-1\n"), [*(tmp_path / "jobs").iterdir()]) == (0, 2, [])
    assert run_here(*submitted, "executor.wait=false", cwd=tmp_path)[0] == 0
    code, said, errors = run_here(*submitted, cwd=tmp_path)
    assert code == 0, said + errors
    assert "Slurm's jobs 1, 2, 3, 4 do this run already" in said
    assert files(tmp_path / "nodes" / "packed") == files(tmp_path / "local" / "packed")
    assert {path.name for path in (tmp_path / "nodes").iterdir()} == {"packed", "packed.plan.html", ".cache"}


@pytest.mark.usefixtures("slurm")
def test_the_first_task_that_fails_ends_the_command(tmp_path: Path) -> None:
    """Losing samples with exit code 0 is what peers do; a later stage then says only that it has no plan."""
    (tmp_path / "bad.tar").write_bytes(b"no tar" * 1000)
    settings = ("executor=slurm", "executor.num_tasks=1", "executor.at_once=1")
    code, _, errors = run_here("+model=qwen2_5_vl", "source.path=bad.tar", *settings, cwd=tmp_path)
    assert code == 1
    assert "bad.tar is not a tar file" in errors
    assert "/lengths-0.log)" in errors


@pytest.mark.usefixtures("slurm")
def test_jobs_of_other_settings_are_not_joined(tmp_path: Path) -> None:
    """The command would end well, and the dataset would be another one."""
    chain = _chain(tmp_path, _sleeping(tmp_path))
    jobs = chain.submit({PUBLISH: None}, MachineTerms({}, "/", ()), "these")
    assert chain.find_submitted_jobs("these") == jobs == {PUBLISH: "1"}
    with pytest.raises(PackError, match=r"jobs 1 pack there with other settings.*scancel 1"):
        chain.find_submitted_jobs("those")
    chain.wait(jobs, str)
    assert chain.find_submitted_jobs("those") == {}


@pytest.mark.usefixtures("slurm")
def test_two_commands_in_one_second_submit_one_chain(demo: tuple[Path, Path], tmp_path: Path) -> None:
    """Both looked for the other's jobs before either had submitted any, and the two chains took turns at one output."""
    config = demo_config(demo, tmp_path / "cache", tmp_path / "out", executor__wait=False, executor__kind="slurm")
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(partial(run_stages_as_slurm_jobs, config), [[_sleeping(tmp_path)]] * 2))
    assert len([*(tmp_path / "jobs").iterdir()]) == 4


@pytest.mark.usefixtures("slurm")
def test_a_command_does_not_wait_for_ever_for_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its controller gone for good, it waited for 26 minutes, and would have waited on."""
    (tmp_path / "squeue").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    chain = _chain(tmp_path, give_up_after=0.3)
    with pytest.raises(PackError, match=r"not answered for 0 s .*give_up_after.*; its jobs 7 may go on"):
        chain.wait({PUBLISH: "7"}, str)
    (tmp_path / "published").touch()
    chain.wait({PUBLISH: "7"}, str)  # the dataset is there, whoever answers


def _squeue(folder: Path, monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """Have `squeue` give these lines: the number of a job, its state, Slurm's reason."""
    (folder / "squeue").write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines))
    (folder / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.mark.usefixtures("slurm")
@pytest.mark.parametrize(
    "reason",
    [
        *("JobHeldAdmin", "JobHeldUser", "launch failed requeued held", "launch_failed_requeued_held"),
        *("DependencyNeverSatisfied", "BadConstraints", "PartitionTimeLimit", "QOSMaxWallDurationPerJobLimit"),
        *("AssocMaxCpuPerJobLimit", "QOSMaxMemoryPerNode", "InvalidAccount", "QOSMinCpuNotSatisfied"),
        *("AccountNotAllowed", "QOSTimeLimit", "PartitionNodeLimit", "JobHoldMaxRequeue", "ReservationDeleted"),
    ],
)
def test_a_task_that_slurm_never_starts_ends_the_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    """The command waited for ever."""
    _squeue(tmp_path, monkeypatch, "7 RUNNING None", f"8 PENDING {reason}")
    with pytest.raises(PackError, match=rf"does not start publish \(job 8\): {reason}\..*scancel 7 8"):
        _chain(tmp_path).wait({WRITE: "7", PUBLISH: "8"}, str)


@pytest.mark.usefixtures("slurm")
def test_a_failed_task_is_named_before_the_job_that_waits_for_it_in_vain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm ends a job whose dependency failed a minute later."""
    _squeue(tmp_path, monkeypatch, "7 RUNNING None", "8 PENDING DependencyNeverSatisfied")
    (tmp_path / "write-0.log").write_text("it is at work\n")
    (tmp_path / "write-1.log").write_text("energon-pack: error: disk full\nenergon-pack: exit code 1 on n1\n")
    with pytest.raises(PackError, match="disk full"):
        _chain(tmp_path).wait({WRITE: "7", PUBLISH: "8"}, str)


@pytest.mark.usefixtures("slurm")
@pytest.mark.parametrize(
    "reason",
    [
        *("Resources", "Priority", "QOSMaxJobsPerUserLimit", "QOSGrpCpuLimit", "AssocGrpCpuLimit", "Dependency"),
        *("JobArrayTaskLimit", "BeginTime", "Licenses", "ReqNodeNotAvail, UnavailableNodes:n[1-4]", "None"),
    ],
)
def test_a_reason_that_ends_by_itself_is_waited_for_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], reason: str
) -> None:
    looks: list[str] = []

    def progress() -> str:
        looks.append("")
        if len(looks) == 4:
            (tmp_path / "published").touch()
        return "no plan yet"

    _squeue(
        tmp_path, monkeypatch, "7 RUNNING None", f"7 PENDING {reason}", f"7 PENDING {reason}", "8 PENDING Dependency"
    )
    _chain(tmp_path).wait({WRITE: "7", PUBLISH: "8"}, progress)
    why = "" if reason == "None" else f" ({reason})"
    assert f"Slurm: write: 1 running, 2 pending{why}; then publish; no plan yet" in capsys.readouterr().out


def test_a_folder_of_logs_is_taken_as_it_is(tmp_path: Path) -> None:
    """Slurm wrote the logs of `50%a` elsewhere, and the jobs failed without a word."""
    script = _chain(tmp_path / "50%a").build_scripts_by_stage({LENGTHS: [0]})[LENGTHS]
    assert f"#SBATCH --output={tmp_path}/50%%a/lengths-%a.log\n" in script
    for name in ("a\\b", "a\nb"):
        with pytest.raises(PackError, match=r"(?s)Slurm takes no such name.*\(cache_dir\)"):
            _chain(tmp_path / name).build_scripts_by_stage({PUBLISH: None})


def test_an_array_has_the_parts_that_are_missing(tmp_path: Path) -> None:
    """Finished parts are not written again, and options of a stage apply only to it."""
    chain = _chain(tmp_path, at_once=2, sbatch={"all": "--time=1:00:00", "write": "--comment='a b'"})
    scripts = chain.build_scripts_by_stage({LENGTHS: range(16), WRITE: [0, 2, 3, 4, 9], PUBLISH: None})
    options = {stage: script.splitlines() for stage, script in scripts.items()}
    assert "#SBATCH --array=0-15%2" in options[LENGTHS]
    assert "#SBATCH --array=0,2-4,9%2" in options[WRITE]
    assert "--array" not in scripts[PUBLISH]
    assert all("#SBATCH --time=1:00:00" in lines for lines in options.values())
    assert ["#SBATCH '--comment=a b'" in lines for lines in options.values()] == [False, True, False]
    assert "python -m energon_pack stage=write part=$SLURM_ARRAY_TASK_ID/16" in options[WRITE]


def test_what_is_slurms_is_set_back_for_a_task() -> None:
    """A config of the user's own has it in every task, which works on its own machine and refuses it."""
    settings = ExecutorConfig(ExecutorKind.slurm, num_workers=3, sbatch="--exclusive", wait=False)
    task = settings.for_slurm_task()
    assert task == {"kind": ExecutorKind.local, "num_workers": 3, "sbatch": None, "wait": True}
    ExecutorConfig(**task).check()


@pytest.mark.parametrize(
    ("log", "error"),
    [
        ("energon-pack: error: disk full\nenergon-pack: exit code 1 on n1\n", "disk full ("),
        ("Killed\nenergon-pack: exit code 137 on n1\n", r"Killed (exit code 137) ("),
        ("slurmstepd-n1: error: *** JOB 5 ON n1 CANCELLED ***\n", "*** JOB 5 ON n1 CANCELLED *** ("),
        (
            "energon-pack: error: before\nenergon-pack: exit code 0 on n2\n",
            "they were cancelled before they began, or a node",
        ),
    ],
)
def test_why_a_task_failed_is_read_from_its_log(tmp_path: Path, log: str, error: str) -> None:
    """One that was requeued and then ended well has not failed."""
    (tmp_path / "write-3.log").write_text(log)
    assert error in str(_chain(tmp_path)._failure())


@pytest.mark.usefixtures("slurm")
def test_what_can_not_be_submitted_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm's own words name the option; no job is left behind."""
    for name, text in (("sbatch", "echo sbatch: error: invalid partition: x >&2; exit 1"), ("squeue", "exit 0")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PackError, match=r"executor\.sbatch: sbatch: error: invalid partition: x"):
        _chain(tmp_path).submit({PUBLISH: None}, MachineTerms({}, "/", ()), "")
    (tmp_path / "sbatch").unlink()
    with pytest.raises(PackError, match="there is no sbatch here"):
        _chain(tmp_path).submit({PUBLISH: None}, MachineTerms({}, "/", ()), "")
