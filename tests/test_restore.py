"""Two ranks over packs and unpacked samples, killed in the middle and restored: no sample is lost or seen twice."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from energon_pack.config import ModelConfig, PackConfig, Rope
from energon_pack.pack import pack
from support.packed import prepare
from support.rank import NUM_RANKS, SAVED_AFTER
from support.running import ROOT, need_torchvision

pytestmark = pytest.mark.slow
NUM_STEPS = 14


def start(*arguments: str) -> list["subprocess.Popen[bytes]"]:
    """All ranks, each with a folder, a rank and the other arguments of `rank.py`."""
    blend, packed, processor, folder, *more = arguments
    script = str(ROOT / "tests" / "support" / "rank.py")
    return [
        subprocess.Popen([sys.executable, script, blend, packed, processor, folder, str(rank), *more])
        for rank in range(NUM_RANKS)
    ]


def lines(folder: Path, run: str) -> list[list[str]]:
    """Steps, samples and the sum over the ranks of each step, as each rank wrote them down."""
    paths = [folder / f"{run}-{rank}.txt" for rank in range(NUM_RANKS)]
    return [path.read_text().splitlines() if path.exists() else [] for path in paths]


def test_a_killed_training_goes_on_with_the_same_samples(
    config: Callable[..., PackConfig], demo: tuple[Path, Path], tmp_path: Path
) -> None:
    """Without the samples' state in the loader, or with one in the encoder, the second half would be another."""
    need_torchvision()
    model = ModelConfig("qwen2_5_vl", "qwen_vl", processor=str(demo[1]), rope=Rope.qwen2_5_vl)
    run = config(model=model, packing__max_token_len=512, source__limit=120, max_skipped=1.0)
    pack(run)
    packed = Path(run.output.dir) / "packed"
    shutil.copytree(demo[0], tmp_path / "source")
    crude = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}
    source = prepare(tmp_path / "source", {**crude, "subflavors": {"sample_type": "multi_mix_qa"}})
    parts = [{"weight": 1.0, "path": str(path)} for path in (packed, source)]
    splits = {"train": {"blend": parts}}
    blend = tmp_path / "blend.yaml"
    blend.write_text(json.dumps({"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": splits}))

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    common = str(blend), str(packed), str(demo[1])
    undisturbed = start(*common, str(whole), str(NUM_STEPS))
    assert [process.wait(600) for process in undisturbed] == [0, 0]

    ranks = start(*common, str(killed), "100000")
    deadline = time.monotonic() + 600
    while min(map(len, lines(killed, "first"))) < SAVED_AFTER + 3:
        assert time.monotonic() < deadline
        assert all(process.poll() is None for process in ranks)
        time.sleep(0.02)
    for process in ranks:
        process.send_signal(signal.SIGKILL)
        process.wait()
    again = start(*common, str(killed), str(NUM_STEPS), str(killed / "state.pt"))
    assert [process.wait(600) for process in again] == [0, 0]

    expected = lines(whole, "first")
    is_pack = {"/" in line for rank in expected for line in rank}  # members of packs are named with their shard
    assert is_pack == {True, False}
    assert [len(rank) for rank in expected] == [NUM_STEPS] * NUM_RANKS
    for before, after, rank in zip(lines(killed, "first"), lines(killed, "again"), expected, strict=True):
        assert before[:SAVED_AFTER] + after == rank
