"""Stages one by one, and in independent parts, write the same bytes as a single run."""

import math
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_pack.config import PackConfig, Stage
from energon_pack.dataset.destination import PlanMissing
from energon_pack.errors import PackError
from energon_pack.pack import pack
from energon_pack.run.executors import EqualSizeParts, WorkPart
from support.packed import demo_config, files
from support.running import ROOT, run_here
from support.texts import write_texts


@pytest.fixture
def config(demo: tuple[Path, Path], tmp_path: Path) -> PackConfig:
    made = demo_config(demo, tmp_path / "cache", tmp_path / "out")
    return replace(made, output=replace(made.output, max_shard_packs=2, name="packed"))


def _whole(config: PackConfig, tmp_path: Path) -> dict[str, bytes]:
    """The files of a run that does all stages, with a cache of its own."""
    alone = replace(config, output=replace(config.output, dir=str(tmp_path / "alone")), cache_dir=str(tmp_path / "own"))
    pack(alone)
    return files(tmp_path / "alone" / "packed")


def test_stages_in_parts_come_to_the_same_bytes(config: PackConfig, tmp_path: Path) -> None:
    """Any engine can run them: an array of Slurm, an Indexed Job, a loop of ssh. In any order, some twice."""
    parts = [f"{number}/5" for number in range(5)] * 2
    Random(0).shuffle(parts)
    numbers = {part: pack(replace(config, stage=Stage.lengths, part=part))["samples"] for part in parts}
    assert sum(numbers.values()) == pack(replace(config, stage=Stage.plan))["samples_in"]
    written = {part: pack(replace(config, stage=Stage.write, part=part)) for part in parts}
    assert sum(figures["shards"] for figures in written.values()) == 6
    before = {path.name: path.stat().st_ino for path in (tmp_path / "out/.staging/packed").glob("*/*.tar")}
    pack(replace(config, stage=Stage.publish))
    assert files(tmp_path / "out" / "packed") == _whole(config, tmp_path)
    assert {path.name: path.stat().st_ino for path in (tmp_path / "out/packed").glob("*.tar")} == before
    assert not (tmp_path / "out" / ".staging").exists()


def test_a_stage_says_what_is_missing(config: PackConfig) -> None:
    """Nobody publishes half of a dataset, or writes the plan of other settings."""
    with pytest.raises(PlanMissing, match="stage=plan with the same settings makes it"):
        pack(replace(config, stage=Stage.write))
    pack(replace(config, stage=Stage.plan))
    with pytest.raises(PlanMissing, match="other settings"):
        pack(replace(config, stage=Stage.write, seed=1))
    pack(replace(config, stage=Stage.write, part="0/2"))
    with pytest.raises(
        PackError, match=r"3 of 6 shards are not written, as packed-000003\.tar: stage=write writes them"
    ):
        pack(replace(config, stage=Stage.publish))


class _Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


def test_another_users_files_are_neither_run_nor_taken_for_a_plan(config: PackConfig, tmp_path: Path) -> None:
    """`stage=write` unpickled the jobs of the first folder it found: who could write there ran as its user."""
    pack(replace(config, stage=Stage.plan))
    staging, ran = tmp_path / "out/.staging/packed", tmp_path / "ran"
    (own,) = staging.glob("*/.jobs")
    for number in range(40):  # one of them comes first in the order of the folder
        jobs = staging / f"{number}.planted" / ".jobs"
        jobs.mkdir(parents=True)
        shutil.copy(own / "about.json", jobs)
        for shard in range(6):
            (jobs / f"packed-{shard:06d}.tar").write_bytes(pickle.dumps(_Payload(ran)))
    assert pack(replace(config, stage=Stage.write))["shards"] == 6
    assert not ran.exists()
    staging.chmod(0o775)
    with pytest.raises(PackError, match=r"others can write into it: output\.name=NAME writes elsewhere"):
        pack(replace(config, stage=Stage.write))
    staging.chmod(0o700)
    pack(replace(config, stage=Stage.publish))
    assert files(tmp_path / "out" / "packed") == _whole(config, tmp_path)


def test_a_run_leaves_the_plan_of_another(config: PackConfig, tmp_path: Path) -> None:
    """A later plan, or a run with another cache, removed the shards that an earlier chain was writing."""
    pack(replace(config, stage=Stage.plan))
    pack(replace(config, stage=Stage.write, part="0/2"))
    other = replace(config, seed=1, cache_dir=str(tmp_path / "own"))
    for stage in (Stage.plan, Stage.all):
        with pytest.raises(PackError, match=r"plan of another run.*output\.overwrite=true removes it"):
            pack(replace(other, stage=stage))
    with pytest.raises(PackError, match="3 of 6 shards are not written"):
        pack(replace(config, stage=Stage.publish))
    pack(replace(config, stage=Stage.write, part="1/2"))  # publishing too early removed the plan
    pack(replace(other, stage=Stage.plan, output=replace(other.output, overwrite=True)))
    with pytest.raises(PlanMissing, match="other settings"):
        pack(replace(config, stage=Stage.write))


def test_a_plan_of_a_source_that_changed_is_replaced(
    config: PackConfig, demo: tuple[Path, Path], tmp_path: Path
) -> None:
    """Else the same command would have to be told to remove its own plan."""
    source = Path(shutil.copytree(demo[0], tmp_path / "source"))
    config = replace(config, source=replace(config.source, path=str(source)))
    pack(replace(config, stage=Stage.plan))
    os.utime(min(source.glob("*.tar")), (1e9, 1e9))
    with pytest.raises(PlanMissing, match="before its source changed"):
        pack(replace(config, stage=Stage.write))
    pack(config)
    assert not (tmp_path / "out" / ".staging").exists()


def test_a_model_that_is_found_by_asking_is_written_in_parts(config: PackConfig, tmp_path: Path) -> None:
    """The plan named the rule that was found, and no part could be written: it had been asked for `auto`.

    A machine that writes needs the plan's template, and no cache.
    """
    config = replace(config, model=replace(config.model, template="auto"))
    pack(replace(config, stage=Stage.plan))
    shutil.rmtree(tmp_path / "cache")
    assert pack(replace(config, stage=Stage.write))["shards"] == 6


def test_what_was_not_measured_is_measured_by_the_plan(config: PackConfig, tmp_path: Path) -> None:
    """An array that lost a task costs time, and no sample."""
    pack(replace(config, stage=Stage.lengths, part="1/3"))
    pack(replace(config, stage=Stage.plan))
    pack(config)
    assert files(tmp_path / "out" / "packed") == _whole(config, tmp_path)


@given(st.lists(st.integers(0, 50), max_size=12), st.integers(1, 9))
def test_each_thing_is_in_one_part(sizes: list[int], num_parts: int) -> None:
    """Each sample is in exactly one part, so it is measured once."""
    spans, parts = EqualSizeParts(sizes), [WorkPart(number, num_parts) for number in range(num_parts)]
    assert sorted(number for part in parts for number in spans.items_by_middle(part)) == [*range(len(sizes))]
    for number in range(len(sizes)):
        rows = [spans.rows_of_item_in(part, number, 7).tolist() for part in parts]
        assert sorted(row for mine in rows for row in mine) == [*range(7)]
        assert all(number in spans.overlapping_items(part) for part, mine in zip(parts, rows, strict=True) if mine)


def test_parts_are_equal_in_bytes() -> None:
    """One file of 90 bytes and one of 10, in two parts: the first is cut at 50."""
    spans = EqualSizeParts([90, 10])
    assert [len(spans.rows_of_item_in(WorkPart(number, 2), 0, 9)) for number in range(2)] == [5, 4]
    assert [spans.overlapping_items(WorkPart(number, 2)) for number in range(2)] == [[0], [0, 1]]


@pytest.mark.parametrize("text", ["3", "3/3", "-1/2", "a/b", "1/0"])
def test_a_part_is_a_number_of_parts(text: str) -> None:
    with pytest.raises(PackError, match=r"part=.*: must be NUMBER/PARTS"):
        WorkPart.parse(text)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_parts_are_killed_and_come_to_the_same_bytes(demo: tuple[Path, Path], tmp_path: Path, seed: int) -> None:
    """An Indexed Job of Kubernetes starts each part again until it ends well, in any order, and some parts twice."""
    source = write_texts(tmp_path / "texts", 16, 200, 120)
    common: tuple[str, ...] = (
        "+model=qwen2_5_vl",
        f"model.processor={demo[1]}",
        f"source.path={source}",
        "output.name=packed",
    )
    common = (*common, "output.max_shard_packs=10", "packing.max_token_len=4096", "executor.num_workers=1")
    assert run_here(*common, f"output.dir={tmp_path / 'alone'}", cwd=ROOT)[0] == 0
    common = (*common, "measure.verify=0", f"output.dir={tmp_path / 'parts'}")
    num_kills = _run_parts((*common, "stage=lengths"), Random(seed))
    assert run_here(*common, "stage=plan", cwd=ROOT)[0] == 0
    num_kills += _run_parts((*common, "stage=write"), Random(seed + 10))
    assert run_here(*common, "stage=publish", cwd=ROOT)[0] == 0
    assert num_kills >= 5  # how many of 44 tries are early enough is chance
    assert files(tmp_path / "parts" / "packed") == files(tmp_path / "alone" / "packed")
    assert not (tmp_path / "parts" / ".staging").exists()


def _run_parts(command: tuple[str, ...], random: Random) -> int:
    """Run all sixteen, some of them twice, four at once; how many were killed.

    They are killed while they work, as long as the machine takes for one: within the time of the last that ended.
    """
    waiting = [*range(16), *random.sample(range(16), 4)]
    random.shuffle(waiting)
    running: dict[subprocess.Popen[bytes], tuple[int, float, float]] = {}
    num_kills, seconds = 0, 2.0
    while waiting or running:
        while waiting and len(running) < 4:
            part, now = waiting.pop(), time.monotonic()
            process = subprocess.Popen(
                [sys.executable, "-m", "energon_pack", *command, f"part={part}/16"],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.DEVNULL,
            )
            is_killed = num_kills < 16 and random.random() < 0.4
            running[process] = part, now, now + random.uniform(0.2, 0.9) * seconds if is_killed else math.inf
        for process, (part, begun, killed_at) in [*running.items()]:
            if process.poll() is None and time.monotonic() > killed_at:
                process.send_signal(signal.SIGKILL)
                process.wait()
            if process.poll() is not None:
                del running[process]
                assert process.returncode in (0, -signal.SIGKILL)
                if process.returncode:
                    num_kills += 1
                    waiting.append(part)
                else:
                    seconds = time.monotonic() - begun
        time.sleep(0.05)
    return num_kills
