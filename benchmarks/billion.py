"""What the process that plans takes for very many samples: `python benchmarks/billion.py SAMPLES [--window SHARDS]`.

Lengths are made up, in the form of the cache: a million different rows, which each hundred shards of 10,000 samples
share. So the disk holds little, and all else is as for so many samples: their lengths are read, packs are planned, the
figures and the page counted, and ledger and pack_plan.parquet written. Nothing is measured, and no shard is written.

A step's peak is of its process alone: `own` is what it holds itself; `mapped` are pages of files, which the system
takes back when it needs the room.
"""

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from planner import mixture
from rich.console import Console
from rich.table import Table

from energon_pack.dataset.ledger import write_ledger
from energon_pack.dataset.plan_file import write_plan
from energon_pack.lengths.audit import draw_samples_to_audit
from energon_pack.lengths.index import IndexedShard
from energon_pack.lengths.measure import MeasuredShard
from energon_pack.lengths.schema import LENGTHS_SCHEMA
from energon_pack.lengths.table_cache import RowRun, TableCache
from energon_pack.plan.items import Lengths
from energon_pack.plan.packs import plan_shards
from energon_pack.plan.plan import plan_packs
from energon_pack.plan.report import summarize_plan
from energon_pack.plan.settings import PackingConfig
from energon_pack.report.advice import lengths_trial_job_of
from energon_pack.report.figures import planned_figures, source_figures
from energon_pack.run.bounded_memory import Scratch
from energon_pack.sources.shard import TarShard
from energon_pack.steps.cost import cost_model_or_default

MILLION = 10**6
SHARD, SLICE, FILE = 10_000, 2_000, 50_000  # samples


@dataclass
class Step:
    """What one step took."""

    name: str
    seconds: float  # of CPU: the machine may have others on it
    own: int  # bytes, at its peak
    mapped: int


class Steps(list[Step]):
    """Steps as they are done, each measured by a thread that looks every 20 ms."""

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        done, peaks = threading.Event(), [0, 0]
        watch = threading.Thread(target=_watch, args=(done, peaks))
        watch.start()
        start = time.process_time()
        try:
            yield
        finally:
            seconds = time.process_time() - start
            done.set()
            watch.join()
            self.append(Step(name, seconds, *peaks))
            print(f"{name}: {seconds:.1f} s, {peaks[0] / 1e6:,.0f} MB own, {peaks[1] / 1e6:,.0f} MB mapped", flush=True)


def _watch(done: threading.Event, peaks: list[int]) -> None:
    while not done.wait(0.02):
        lines = Path("/proc/self/status").read_text().splitlines()
        used = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.startswith("Rss")}
        for at, name in enumerate(("RssAnon", "RssFile")):
            peaks[at] = max(peaks[at], used[name])


# ------------------------------------------------------------------------------------------------------------- lengths


def rows_of_lengths(first: int, num: int) -> pa.Table:
    """Made-up rows: short texts, and an image in two of three; one sample in a thousand can't be read."""
    chance = np.random.default_rng(first)
    numbers = np.arange(first, first + num)
    lens = mixture(num, chance).astype(np.int32)
    is_lost, has_image = numbers % 1000 == 7, numbers % 3 > 0
    visual = np.where(has_image, lens // 2, 0).astype(np.int32)
    sizes = chance.integers(20_000, 200_000, num)
    part = pa.StructArray.from_arrays(
        [pa.array(["jpg"] * num, pa.large_string()), pa.array(numbers * 2048 + 1536), pa.array(sizes),
         pa.array(["image"] * num), pa.array(["jpg"] * num)], fields=[*LENGTHS_SCHEMA.field("parts").type.value_type]
    )  # fmt: skip
    ends = np.concatenate(([0], np.cumsum(has_image)))
    parts = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), part.filter(pa.array(has_image)))
    no, nothing = pa.array(np.zeros(num, np.bool_)), np.zeros(num, np.int32)
    columns = {
        "key": pa.array([f"{number:09d}" for number in numbers.tolist()], pa.large_string()),
        "record_part": pa.array(["json"] * num),
        "record_offset": numbers * 2048 + 512,
        "record_size": lens.astype(np.int64) * 4,
        "parts": parts.cast(LENGTHS_SCHEMA.field("parts").type),
        "media_type": pa.array(np.where(has_image, "image", "text").tolist()),
        "token_len": np.where(is_lost, 0, lens).astype(np.int32),
        "num_supervised": lens // 3,
        "num_visual_tokens": visual,
        "num_images": has_image.astype(np.int32),
        "num_bytes": sizes + 2048,
        "num_control_tokens": nothing,
        "num_weighted": nothing,
        "checksum": chance.integers(0, 2**32, num, np.uint32),
        "kept": np.zeros(num, np.uint64),
        "reason": pa.array(["unreadable_media" if lost else None for lost in is_lost.tolist()]),
        "detail": pa.array(["made up" if lost else None for lost in is_lost.tolist()], pa.large_string()),
    }
    for field in LENGTHS_SCHEMA:
        if field.name not in columns:
            columns[field.name] = no if pa.types.is_boolean(field.type) else pa.nulls(num, field.type)
    empty = pa.array([[]] * num, LENGTHS_SCHEMA.field("positions").type)
    columns["positions"] = empty
    return pa.table([columns[name] for name in LENGTHS_SCHEMA.names], schema=LENGTHS_SCHEMA)


def fill_cache(folder: Path, num: int) -> None:
    """Lengths of so many samples, in files and records as large as those of a run."""
    cache = TableCache(folder)
    for first in range(0, num, FILE):
        table = rows_of_lengths(first, FILE)
        for start in range(first, first + FILE, SLICE):
            record = RowRun(str(start // SHARD), start % SHARD, SLICE)
            cache.add(table.slice(start - first, SLICE), [record])
        cache.flush()


def shards_of(folder: Path, num: int, different: int) -> list[MeasuredShard]:
    """Shards of so many samples, which take turns in the rows that are there."""
    cache, found = TableCache(folder), []
    for number in range(num // SHARD):
        key = str(number % (different // SHARD))
        pieces, missing = cache.find(key, SHARD)
        assert not len(missing)
        name = f"{number // 1000:04d}/{number:06d}.tar"
        shard = TarShard(name, f"/data/{name}", SHARD * 2048, "1")
        found.append(MeasuredShard(IndexedShard(shard, key, [], SHARD, {}), pieces, True))
    return found


# ---------------------------------------------------------------------------------------------------------------- steps


def run(num: int, window: int | None, folder: Path) -> Steps:
    """What the driver does between the lengths and the first shard."""
    steps, cost, packing = Steps(), cost_model_or_default(None), PackingConfig(window=window)
    different = min(num, MILLION)
    fill_cache(folder / "cache", different)
    with steps.step("find lengths"):
        measured = shards_of(folder / "cache", num, different)
    with steps.step("read lengths"):
        lengths = Lengths(measured, scratch=Scratch(folder))
    with steps.step("try other lengths"):
        lengths_trial_job_of(lengths, packing, [4096, 8192])
    with steps.step("plan"):
        plan = plan_packs(lengths.items, packing, 0, cost, lengths.scratch)
    with steps.step("report"):
        report = summarize_plan(lengths, plan, packing, cost, num)
    with steps.step("shards"):
        shards = plan_shards(lengths, plan, 4096, 1e9, ())
    with steps.step("page"):
        planned_figures(lengths, plan, report, packing)
        source_figures(lengths, None, packing.max_token_len)
    with steps.step("ledger"):
        write_ledger(folder / "skipped.jsonl", lengths, plan, packing)
    with steps.step("draw audit"):
        draw_samples_to_audit(measured, 0.002, 0)
    with steps.step("plan file"):
        names = [f"packed-{number:06d}.tar" for number in range(len(shards.splits))]
        write_plan(folder / "pack_plan.parquet", lengths, plan, shards, names)
    print(f"{report.packs:,} packs, fill {report.fill:.3%}, {len(shards.bounds) - 1:,} shards")
    print(f"pack_plan.parquet {os.path.getsize(folder / 'pack_plan.parquet') / num:.1f} bytes a sample")
    return steps


def table_of(steps: Steps, num: int, base: int) -> Table:
    names = "CPU s", "µs a sample", "own MB", "mapped MB", "own bytes a sample", "1 B: hours", "1 B: own GB"
    table = Table("step", *names, box=None)
    for step in steps:
        each = max(0, step.own - base) / num
        table.add_row(
            step.name, f"{step.seconds:.1f}", f"{step.seconds / num * 1e6:.2f}", f"{step.own / 1e6:,.0f}",
            f"{step.mapped / 1e6:,.0f}", f"{each:.1f}", f"{step.seconds / num * 1e9 / 3600:.2f}", f"{each:.1f}",
        )  # fmt: skip
    return table


def breaks_first(steps: Steps, num: int, base: int) -> str:
    """What a billion samples would take, and of what most; straight lines, so that few samples say too much."""
    by, most = 10**9 / num, max(steps, key=lambda step: step.own)
    longest = max(steps, key=lambda step: step.seconds)
    hours = sum(step.seconds for step in steps) * by / 3600
    return (
        f"1 B: {hours:.1f} CPU hours, {longest.seconds * by / 3600:.1f} of them {longest.name};"
        f" {(most.own - base) * by / 1e9:.1f} GB of memory ({most.name}),"
        f" {max(step.mapped for step in steps) * by / 1e9:.0f} GB of scratch files"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("samples", type=int)
    parser.add_argument("--window", type=int)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        base = Steps()
        with base.step("before"):
            time.sleep(0.1)
        steps = run(args.samples, args.window, Path(folder))
    Console(width=120).print(table_of(steps, args.samples, base[0].own))
    print(breaks_first(steps, args.samples, base[0].own))


if __name__ == "__main__":
    main()
