"""What a checksum of each medium would add to writing packed shards: `python benchmarks/checksums.py`.

6,000 images of about 94 kB, as in `writer.py`, are written nine times with each checksum in turn. The share is the CPU
seconds of the checksums over those of all else in the same run; the median of nine. `xxh3` where xxhash is installed.
"""

import os
import tempfile
import time
import zlib
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import writer
from rich.console import Console
from rich.table import Table

from energon_pack.dataset.tar_writer import TarWriter
from energon_pack.run.executors.local import LocalExecutor
from energon_pack.sources.tar import BLOCK

Checksum = Callable[[memoryview], int]
ROUNDS = 9


class Summing:
    """Has `TarWriter` checksum each medium that it copies, once it lies in its buffer."""

    def __init__(self) -> None:
        self._copy = TarWriter.copy
        self.checksum: Checksum | None = None
        self.seconds = 0.0

    def copy(self, tar: TarWriter, name: str, source: Any, offset: int, size: int, *more: Any, **named: Any) -> Any:
        ends = self._copy(tar, name, source, offset, size, *more, **named)
        if self.checksum is not None:
            start = time.thread_time()
            self.checksum(tar._buffer[tar._used - size - (-size % BLOCK) : tar._used])
            self.seconds += time.thread_time() - start
        return ends


def words(data: memoryview) -> int:
    return int(np.add.reduce(np.frombuffer(data, "<u8")))


def main() -> None:
    checksums: dict[str, Checksum] = {"crc32": zlib.crc32, "sum of 64-bit words": words}
    if find_spec("xxhash"):
        checksums["xxh3"] = import_module("xxhash").xxh3_64_intdigest
    shares: dict[str, list[float]] = {name: [] for name in checksums}
    summing = Summing()
    TarWriter.copy = lambda tar, *given, **named: summing.copy(tar, *given, **named)  # type: ignore[method-assign]
    writer.NUM_SAMPLES, writer.NUM_SOURCE_SHARDS = 6_000, 12
    with tempfile.TemporaryDirectory() as temporary, LocalExecutor(1) as executor:
        source, plan = Path(temporary, "source"), Path(temporary, "plan.parquet")
        writer.make_source(source)
        template = writer.make_template(Path(temporary))
        num_shards = writer.make_plan(source, plan, template)
        for _ in range(ROUNDS):
            for name, checksum in checksums.items():
                summing.checksum, summing.seconds = checksum, 0.0
                before = os.times()
                writer.write(Path(temporary, "out"), plan, source, num_shards, executor, template)
                after = os.times()
                all_seconds = after.user + after.system - before.user - before.system
                shares[name].append(summing.seconds / (all_seconds - summing.seconds))
    table = Table("checksum of each medium", "CPU of writing", box=None, pad_edge=False)
    for name, found in shares.items():
        table.add_row(name, f"+{median(found):.1%}")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
