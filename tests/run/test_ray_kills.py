"""Whatever is killed on a Ray cluster, workers or whole nodes, the run ends well, with the bytes of a local one."""

import os
import random
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from support.packed import files
from support.ray_cluster import Nodes, nodes
from support.running import ROOT

pytest.importorskip("ray", reason="Ray is not installed")

_COPIES = 40  # of the demo, 320 samples each
_KILLS = 13  # in each half of a run: without an end to them it would have none on a slow machine
_BETWEEN = {"measuring": 3.0, "writing": 1.5}  # seconds: a new worker takes some until it does anything


def _copies(demo: Path, folder: Path) -> Path:
    """A source that takes a while: the demo's tars again and again."""
    folder.mkdir()
    for tar in demo.rglob("*.tar"):
        for number in range(_COPIES):
            shutil.copy(tar, folder / f"{number:03d}-{tar.name}")
    return folder


def _start(arguments: list[str], cwd: Path) -> "subprocess.Popen[str]":
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    command = [sys.executable, "-m", "energon_pack", *arguments]
    return subprocess.Popen(command, cwd=cwd, env=environment, stdout=-1, stderr=subprocess.STDOUT, text=True)


def _kill(cluster: Nodes, process: "subprocess.Popen[str]", staging: Path) -> dict[str, list[int]]:
    """Kill until a run ends; how many workers and nodes, by what was at work."""
    chance, kills = random.Random(0), {"measuring": [0, 0], "writing": [0, 0]}
    while process.poll() is None:
        stage = "writing" if any(staging.glob("*.idx")) else "measuring"
        workers = cluster.workers() if sum(kills[stage]) < _KILLS else []
        if workers and sum(kills[stage]) % 6 == 4:
            cluster.lose(chance.randrange(4))
            kills[stage][1] += 1
        elif workers:
            with suppress(psutil.NoSuchProcess):
                chance.choice(workers).kill()
                kills[stage][0] += 1
        time.sleep(_BETWEEN[stage] if workers else 0.05)
    return kills


@pytest.mark.slow
def test_kills_of_workers_and_nodes(demo: tuple[Path, Path], tmp_path: Path) -> None:
    source = _copies(demo[0], tmp_path / "source")
    shared = ["+model=qwen2_5_vl", f"model.processor={demo[1]}", f"source.path={source}", "packing.max_token_len=1024"]
    shared += ["output.max_shard_packs=8", "media.image=support.jobs:SlowImage", "measure.verify=0"]
    local = _start([*shared, "output.dir=local", "output.name=packed", "executor.num_workers=8"], tmp_path)
    said = local.communicate()[0]
    assert local.returncode == 0, said
    with nodes(4) as cluster:
        remote = [*shared, "output.dir=ray", "output.name=packed", "executor=ray", "executor.retries=20"]
        process = _start([*remote, f"executor.address={cluster.address}"], tmp_path)
        kills = _kill(cluster, process, tmp_path / "ray" / ".staging" / "packed")
    said = process.communicate()[0]
    print(f"kills of [workers, nodes]: {kills}\n{said}")
    assert process.returncode == 0
    assert all(of_workers > 3 and of_nodes > 0 for of_workers, of_nodes in kills.values())
    assert files(tmp_path / "ray" / "packed") == files(tmp_path / "local" / "packed")
