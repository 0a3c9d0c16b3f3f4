"""Whatever is killed on a Ray cluster, workers or whole nodes, the run ends well, with the bytes of a local one."""

import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from glob import iglob
from pathlib import Path

import psutil
import pytest

from support.packed import files
from support.ray_cluster import Nodes, nodes
from support.running import ROOT

pytest.importorskip("ray", reason="Ray is not installed")

_KILLS = 13  # in each half of a run: without an end to them it would have none on a slow machine
_BETWEEN = {"measuring": 3.0, "writing": 1.5}  # seconds: a new worker takes some until it does anything
#: how often what was killed, and in which half
Kills = Counter[tuple[str, str]]


def _copies(demo: Path, folder: Path, num: int) -> Path:
    """A source that takes a while: the demo's tars again and again, 320 samples each time."""
    folder.mkdir()
    for tar in demo.rglob("*.tar"):
        for number in range(num):
            shutil.copy(tar, folder / f"{number:03d}-{tar.name}")
    return folder


def _start(arguments: list[str], cwd: Path) -> "subprocess.Popen[str]":
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    command = [sys.executable, "-m", "energon_pack", *arguments]
    return subprocess.Popen(command, cwd=cwd, env=environment, stdout=-1, stderr=subprocess.STDOUT, text=True)


def _kill(cluster: Nodes, process: "subprocess.Popen[str]", staging: Path, chance: random.Random) -> Kills:
    """Kill until a run ends."""
    kills: Kills = Counter()
    nums = dict.fromkeys(_BETWEEN, 0)
    while process.poll() is None:
        stage = "writing" if any(iglob(f"{staging}/*/*.idx")) else "measuring"
        workers = cluster.workers() if nums[stage] < _KILLS else []
        if workers:
            what = "worker" if chance.random() < 0.7 else "node"
            if what == "node":
                cluster.lose(chance.randrange(4))
            else:
                with suppress(psutil.NoSuchProcess):
                    chance.choice(workers).kill()
            kills[what, stage] += 1
            nums[stage] += 1
        time.sleep(_BETWEEN[stage] if workers else 0.05)
    return kills


@pytest.mark.slow
def test_a_lost_head_ends_the_run_and_the_same_command_goes_on(demo: tuple[Path, Path], tmp_path: Path) -> None:
    """Ray itself ends the process, at once or after a minute without an answer, and says nothing or little."""
    source = _copies(demo[0], tmp_path / "source", 15)
    arguments = ["+model=qwen2_5_vl", f"model.processor={demo[1]}", f"source.path={source}", "measure.verify=0"]
    arguments += ["media.image=support.jobs:SlowImage", "output.dir=out", "output.name=packed"]
    with nodes(2) as cluster:
        process = _start([*arguments, "executor=ray", f"executor.address={cluster.address}"], tmp_path)
        while not cluster.workers():
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.05)
        cluster.lose_head()
        said = process.communicate(timeout=200)[0]
    assert process.returncode == 1
    assert "the node of this machine" in said
    assert "Traceback" not in said
    assert not (tmp_path / "out" / "packed").exists()
    process = _start([*arguments, "executor=ray", "executor.num_workers=4"], tmp_path)  # a Ray of its own
    said = process.communicate(timeout=200)[0]
    assert process.returncode == 0, said
    assert not [*(tmp_path / "out").glob(".seen-by-all-*")]


@pytest.mark.slow
def test_fifty_kills_of_workers_and_nodes(demo: tuple[Path, Path], tmp_path: Path) -> None:
    """Spread over some runs, over measuring and writing."""
    source = _copies(demo[0], tmp_path / "source", 80)
    shared = ["+model=qwen2_5_vl", f"model.processor={demo[1]}", f"source.path={source}", "packing.max_token_len=1024"]
    shared += ["output.max_shard_packs=8", "media.image=support.jobs:SlowImage", "measure.verify=0"]
    local = _start([*shared, "output.dir=local", "output.name=packed", "executor.num_workers=8"], tmp_path)
    said = local.communicate()[0]
    assert local.returncode == 0, said
    expected = files(tmp_path / "local" / "packed")
    done: Kills = Counter()
    number = 0
    with nodes(4) as cluster:
        remote = [*shared, "output.name=packed", "executor=ray", f"executor.address={cluster.address}"]
        while done.total() < 50:
            number += 1
            folder = tmp_path / str(number)
            many = (
                "executor.task.max_retries=20"  # of some jobs of ten seconds, each of four workers is killed every ten
            )
            process = _start([*remote, many, f"output.dir={folder}"], tmp_path)
            here = _kill(cluster, process, folder / ".staging" / "packed", random.Random(number))
            said = process.communicate()[0]
            print(f"run {number}: {dict(here)}\n{said}", flush=True)
            assert process.returncode == 0
            assert files(folder / "packed") == expected
            done += here
    print(f"{done.total()} kills in {number} runs: {dict(done)}")
    assert all(done[what, stage] > 1 for what in ("worker", "node") for stage in _BETWEEN)
