"""What the checksum of each medium adds to writing packed shards: `python benchmarks/checksums.py`.

6,000 images of about 94 kB, as in `writer.py`, are written nine times. The share is the CPU seconds of the checksums
over those of all else in the same run; the median of nine.
"""

import os
import tempfile
import time
from pathlib import Path
from statistics import median
from zlib import crc32

import writer

from energon_pack.dataset import tar_writer
from energon_pack.run.executors.local import LocalExecutor

ROUNDS = 9


class TimedChecksum:
    """The CRC-32 of the tar writer, which counts the CPU seconds that it takes."""

    seconds = 0.0

    def __call__(self, data: memoryview, before: int = 0) -> int:
        start = time.thread_time()
        checksum = crc32(data, before)
        self.seconds += time.thread_time() - start
        return checksum


def main() -> None:
    timed, shares = TimedChecksum(), []
    tar_writer.crc32 = timed  # type: ignore[assignment, attr-defined]
    writer.NUM_SAMPLES, writer.NUM_SOURCE_SHARDS = 6_000, 12
    with tempfile.TemporaryDirectory() as temporary, LocalExecutor(1) as executor:
        source, plan = Path(temporary, "source"), Path(temporary, "plan.parquet")
        writer.make_source(source)
        template = writer.make_template(Path(temporary))
        num_shards = writer.make_plan(source, plan, template)
        for _ in range(ROUNDS):
            timed.seconds, before = 0.0, os.times()
            writer.write(Path(temporary, "out"), plan, source, num_shards, executor, template)
            after = os.times()
            all_seconds = after.user + after.system - before.user - before.system
            shares.append(timed.seconds / (all_seconds - timed.seconds))
    print(f"the checksums of media add {median(shares):.1%} to the CPU of writing")


if __name__ == "__main__":
    main()
