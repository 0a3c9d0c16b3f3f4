"""Packs a second that a loader makes, for `benchmarks/gpu.py`."""

import multiprocessing
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from megatron.energon import WorkerConfig
from rich.table import Table
from timing import at_least

from energon_pack import PackedTaskEncoder

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "recipes"))

from packed_data import train_loader


def loader_rate(dataset: Path, encoder: PackedTaskEncoder, num_workers: int, num_packs: int) -> float:
    """Packs a second, ready for the model, after those that workers make ahead."""
    before = multiprocessing.active_children()
    worker = WorkerConfig(rank=0, world_size=1, num_workers=num_workers)
    stream = iter(train_loader(dataset, encoder, worker))
    for _ in range(1 + 3 * num_workers):
        next(stream)
    start = time.perf_counter()
    for _ in range(num_packs):
        next(stream)
    rate = num_packs / (time.perf_counter() - start)
    for process in multiprocessing.active_children():
        if process not in before:  # else it is waited for when the loader is collected
            process.terminate()
    return rate


def loading(rates: Mapping[int, float], model: float) -> Table:
    """Beside the packs a second of the fastest training; 0: there was none."""
    table = Table("loader, workers", "packs/s", *["goal: the model's packs/s, holds"] * bool(model))
    for num_workers, rate in rates.items():
        table.add_row(str(num_workers), f"{rate:.2f}", *[at_least(rate, round(model, 2), "/s")] * bool(model))
    return table
