"""Sixteen processes that know nothing of each other, killed at random and started again: the same bytes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from support.packed import files
from support.running import ROOT, run_here
from support.texts import write_texts


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
    """Run all sixteen, some of them twice, four at once; how many were killed."""
    waiting = [*range(16), *random.sample(range(16), 4)]
    random.shuffle(waiting)
    running: dict[subprocess.Popen[bytes], tuple[int, float]] = {}
    num_kills = 0
    while waiting or running:
        while waiting and len(running) < 4:
            part, now = waiting.pop(), time.monotonic()
            process = subprocess.Popen(
                [sys.executable, "-m", "energon_pack", *command, f"part={part}/16"],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.DEVNULL,
            )
            running[process] = part, now + random.uniform(1, 4) if num_kills < 16 and random.random() < 0.4 else 1e18
        for process, (part, killed_at) in [*running.items()]:
            if process.poll() is None and time.monotonic() > killed_at:
                process.send_signal(signal.SIGKILL)
                process.wait()
            if process.poll() is not None:
                del running[process]
                assert process.returncode in (0, -signal.SIGKILL)
                if process.returncode:
                    num_kills += 1
                    waiting.append(part)
        time.sleep(0.05)
    return num_kills
