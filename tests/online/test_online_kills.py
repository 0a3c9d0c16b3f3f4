"""Processes that pack while they load, killed in the middle and started again: as one that never stopped."""

import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.running import ROOT, need_torchvision

NUM = 30


def read(job: dict[str, Any], kill_after: int | None = None) -> None:
    """Run it to its end, or until it says that it has had so many batches."""
    path = ":".join(str(ROOT / name) for name in (".", "tests"))
    variables = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    script = ROOT / "tests" / "support" / "online_reader.py"
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", str(script), json.dumps(job)], env=variables, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == str(kill_after):
                process.kill()
    assert kill_after is not None or process.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lazy", "streaming"])
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_killed_run_goes_on_with_the_same_stream(
    demo: tuple[Path, Path], cache: Path, tmp_path: Path, kind: str, num_workers: int, num_ranks: int
) -> None:
    """Samples after a resume that are lost, or come twice, are a training on other data than the one that is told."""
    need_torchvision()
    settings = ["+model=qwen2_5_vl", f"model.processor={demo[1]}", f"source.path={demo[0]}", f"cache_dir={cache}"]
    settings += ["packing.max_token_len=1024", "executor.num_workers=1"]
    chance = random.Random(f"{kind} {num_workers} {num_ranks}")
    for rank in range(num_ranks):
        logs = []
        for folder in (tmp_path / "undisturbed", tmp_path / "killed"):
            folder.mkdir(exist_ok=True)
            job = {"kind": kind, "settings": settings, "rank": rank, "ranks": num_ranks, "workers": num_workers}
            job |= {"folder": str(folder), "num": NUM}
            if folder.name == "killed":
                for after in sorted(chance.sample(range(1, NUM), 2)):
                    read(job, kill_after=after)
            read(job)
            logs.append([json.loads(line) for line in (folder / f"{rank}.log").read_text().splitlines()])
        assert len(logs[0]) == NUM
        assert logs[1] == logs[0]
    texts = [(tmp_path / "killed" / f"{rank}.log").read_text() for rank in range(num_ranks)]
    first = [json.loads(line) for text in texts for line in text.splitlines()]
    if kind == "lazy":  # within an epoch no sample twice, over all ranks
        most = Counter(name for pack in first for name in pack).most_common(1)[0][1]
        assert most <= 1 + num_ranks * NUM // 70
