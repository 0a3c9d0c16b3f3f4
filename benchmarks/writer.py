"""Writing packed shards, beside `cp` and the usual tar writers: `python benchmarks/writer.py`.

12,000 images of about 94 kB with their JSON in 24 source tars, written as packs of 8 in random order. CPU seconds are
user and system, children included, best of three, warm page cache. Memory is the largest process of a whole run, at
10,000 and 1,000,000 tiny samples (`--memory`, some minutes).
"""

import argparse
import io
import json
import os
import random
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import webdataset
from PIL import Image
from rich.console import Console
from rich.table import Table
from timing import at_least, at_most, cpu_and_wall_seconds

from energon_pack.dataset.energon import write_metadata
from energon_pack.dataset.files import PLAN_SCHEMA
from energon_pack.dataset.shards import ShardJob, WrittenShard, write_shard
from energon_pack.lengths.kept_tokens import TokenWriter
from energon_pack.run.executors.local import LocalExecutor
from energon_pack.run.untrusted_input import dataclass_from_dict
from energon_pack.samples.flavors import DEFAULT_FLAVOR
from energon_pack.samples.media.medium import Media
from energon_pack.samples.sample import MediaPart
from energon_pack.samples.settings import ReadSettings
from energon_pack.sources.demo import make_demo_source_and_processor
from energon_pack.sources.reader import SourceReader
from energon_pack.sources.sample import read_sample
from energon_pack.sources.settings import SourceConfig
from energon_pack.sources.source_file import IndexRow, rows_of
from energon_pack.sources.source_path import find_source
from energon_pack.templates.models import read_model_config
from energon_pack.templates.processor import load_saved_template, prepare_template
from energon_pack.templates.sample import Sample
from energon_pack.templates.settings import ModelConfig, TemplateSettings

TURNS = [{"role": "user", "content": "<image>What is this?"}, {"role": "assistant", "content": "a " * 300}]
NUM_SAMPLES, NUM_SOURCE_SHARDS, PACK_MEMBERS, SHARD_PACKS = 12_000, 24, 8, 250


def make_source(folder: Path) -> None:
    """Write tars of samples with an image each: a small JPEG, filled up with noise before its end mark."""
    rng = random.Random(0)
    head = io.BytesIO()
    Image.new("RGB", (448, 448)).save(head, "JPEG")
    noise = os.urandom(200_000)
    folder.mkdir()
    for shard in range(NUM_SOURCE_SHARDS):
        with tarfile.open(folder / f"{shard:03d}.tar", "w") as tar:
            for i in range(NUM_SAMPLES // NUM_SOURCE_SHARDS):
                for name, data in (
                    (f"{i:06d}.json", json.dumps({"messages": TURNS, "id": i}).encode()),
                    (f"{i:06d}.0.jpg", head.getvalue()[:-2] + noise[: rng.randint(60_000, 128_000)] + b"\xff\xd9"),
                ):
                    info = tarfile.TarInfo(name)
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))


def make_template(folder: Path) -> str:
    """Return a folder with the template of the demo's processor."""
    _, processor = make_demo_source_and_processor(folder / "demo")
    model = dataclass_from_dict(ModelConfig, {**read_model_config("qwen2_5_vl"), "processor": str(processor)})
    return prepare_template(TemplateSettings(model), folder / "cache")


def make_plan(source: Path, path: Path, template: str) -> int:
    """A plan of packs in random order, as packing writes it; beside it checksums, and tokens as measuring keeps them;
    the number of its shards.
    """
    rows: list[dict[str, Any]] = []
    (tokens,) = load_saved_template(template).member_tokens([Sample([*TURNS], [Media("image", 448, 448)])])
    counts = {"token_len": len(tokens), "num_supervised": tokens.num_supervised, "num_visual_tokens": 256}
    keeping = TokenWriter()
    with SourceReader() as reader:
        for shard in find_source(SourceConfig(), str(source)).shards:
            for sample in rows_of(shard.index(), IndexRow):
                read = read_sample(reader, shard, sample, ReadSettings())
                checksum = reader.checksum(shard, read.raw, read.parts)
                kept = keeping.add(tokens, read, checksum)
                parts = [MediaPart(*part, "image", "jpg") for part in sample.parts]
                more = {"media_type": "image", "checksum": checksum, "kept": kept, **counts}
                rows.append({**asdict(sample), "shard": shard.name, "parts": parts, **more})
    random.Random(0).shuffle(rows)
    number = keeping.write(path.parent)
    beside = [(row["checksum"], row["kept"] and number + row["kept"]) for row in rows]
    np.save(path.with_suffix(".npy"), np.array(beside, np.uint64))
    for place, row in enumerate(rows):
        row["pack"] = f"p_{place // PACK_MEMBERS:08d}"
    size = SHARD_PACKS * PACK_MEMBERS
    with pq.ParquetWriter(path, PLAN_SCHEMA) as writer:
        for start in range(0, len(rows), size):
            writer.write_table(pa.Table.from_pylist(rows[start : start + size], PLAN_SCHEMA), row_group_size=size)
    return -(-len(rows) // size)


def packs(source: Path, plan: Path) -> Iterator[tuple[str, dict[str, bytes]]]:
    """The same packs, for other writers: bytes in memory, read in the same order."""
    fds = {shard.name: os.open(shard.path, os.O_RDONLY) for shard in find_source(SourceConfig(), str(source)).shards}
    with pq.ParquetFile(plan) as file:
        for group in range(file.num_row_groups):
            rows = file.read_row_group(group).to_pylist()
            for start in range(0, len(rows), PACK_MEMBERS):
                members = rows[start : start + PACK_MEMBERS]
                read = [json.loads(os.pread(fds[m["shard"]], m["record_size"], m["record_offset"])) for m in members]
                parts = {"json": json.dumps({"messages": read}).encode()}
                for i, member in enumerate(members):
                    [part] = member["parts"]
                    parts[f"s{i:03d}.i00.jpg"] = os.pread(fds[member["shard"]], part["size"], part["offset"])
                yield members[0]["pack"], parts
    for fd in fds.values():
        os.close(fd)


def write(
    folder: Path, plan: Path, source: Path, num_shards: int, executor: LocalExecutor, template: str
) -> list[WrittenShard]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    shards = {shard.name: shard for shard in find_source(SourceConfig(), str(source)).shards}
    beside = np.load(plan.with_suffix(".npy"))
    size = SHARD_PACKS * PACK_MEMBERS
    how = ReadSettings(), template, "auto", "fingerprint", DEFAULT_FLAVOR, "train"
    jobs = (
        ShardJob(
            *(folder / f"packed-{i:06d}.tar", plan, i, shards, *how),
            *(beside[i * size : (i + 1) * size, 0].astype(np.uint32), beside[i * size : (i + 1) * size, 1]),
            plan.parent,
        )
        for i in range(num_shards)
    )
    written = list(executor.map(write_shard, jobs))
    write_metadata(folder, written, DEFAULT_FLAVOR, "typed", False, {})
    return written


def throughput(folder: Path, table: Table) -> None:
    source, plan = folder / "source", folder / "plan.parquet"
    make_source(source)
    template = make_template(folder)
    num_shards = make_plan(source, plan, template)
    out = folder / "out"
    with LocalExecutor(1) as executor:
        written = write(out, plan, source, num_shards, executor, template)
        megabytes = sum(shard.num_bytes for shard in written) / 1e6
        ours = cpu_and_wall_seconds(lambda: write(out, plan, source, num_shards, executor, template))

    def shard_writer() -> None:
        with webdataset.ShardWriter(str(folder / "wds-%06d.tar"), maxcount=SHARD_PACKS, verbose=0) as sink:
            for key, parts in packs(source, plan):
                sink.write({"__key__": key, **parts})

    def usual() -> None:
        with tarfile.open(folder / "usual.tar", "w") as tar:
            for key, parts in packs(source, plan):
                for name, data in parts.items():
                    info = tarfile.TarInfo(f"{key}.{name}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))

    def cp() -> None:
        shutil.rmtree(folder / "copy", ignore_errors=True)
        subprocess.run(["cp", "-r", str(out), str(folder / "copy")], check=True)

    others = {}
    for name, work in (("webdataset ShardWriter", shard_writer), ("tarfile", usual), ("cp -r", cp)):
        others[name] = cpu_and_wall_seconds(work)
        for path in (*folder.glob("wds-*.tar"), folder / "usual.tar"):
            path.unlink(missing_ok=True)
    for name, goal in (("webdataset ShardWriter", 2.3), ("tarfile", 0.0), ("cp -r", 0.7)):
        ratio = others[name][0] / ours[0]
        beside = f"{name} {megabytes / others[name][0]:,.0f}"
        asked = at_least(ratio, goal, "×") if goal else ""
        table.add_row("W1 MB per CPU second", f"{megabytes / ours[0]:,.0f}", beside, f"{ratio:.2f}×", asked)
    with LocalExecutor(2) as executor:
        write(out, plan, source, num_shards, executor, template)  # processes are up now
        _, wall = cpu_and_wall_seconds(lambda: write(out, plan, source, num_shards, executor, template))
    ratio = others["cp -r"][1] / wall
    beside = f"cp -r {megabytes / others['cp -r'][1]:,.0f}"
    row = (f"{megabytes / wall:,.0f}", beside, f"{ratio:.2f}×", at_least(ratio, 0.8, "×"))
    table.add_row("W2 MB per wall second, 2 processes", *row)


def largest_process(arguments: list[str]) -> int:
    """Peak resident bytes of the largest process of a run."""
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
    peak, done = [0], Event()

    def watch() -> None:
        while not done.wait(0.05):
            with_children = [psutil.Process(process.pid)]
            for each in [*with_children, *with_children[0].children(recursive=True)]:
                try:
                    peak[0] = max(peak[0], each.memory_info().rss)
                except psutil.NoSuchProcess:
                    continue

    Thread(target=watch, daemon=True).start()
    code = process.wait()
    done.set()
    assert code == 0, arguments
    return peak[0]


def memory(folder: Path, table: Table) -> None:
    """W3: a whole run over tiny samples, `measure.verify` (which loads torch) off."""
    _, processor = make_demo_source_and_processor(folder / "demo")
    for num in (10_000, 1_000_000):
        source = folder / f"tiny{num}"
        source.mkdir()
        for shard in range(num // 10_000):
            with tarfile.open(source / f"{shard:04d}.tar", "w") as tar:
                for i in range(10_000):
                    turns = [{"role": "user", "content": f"{i}?"}, {"role": "assistant", "content": f"{shard}."}]
                    data = json.dumps({"messages": turns}).encode()
                    info = tarfile.TarInfo(f"{i:06d}.json")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
        arguments = [sys.executable, "-m", "energon_pack", "+model=qwen2_5_vl", f"model.processor={processor}"]
        settings = [
            f"source.path={source}",
            f"output.dir={folder / 'packed'}",
            f"output.name=n{num}",
            "measure.verify=0",
        ]
        start = time.perf_counter()
        peak = largest_process([*arguments, *settings, "executor.num_workers=2"])
        wall = f"{time.perf_counter() - start:.0f} s"
        table.add_row(f"W3 memory, {num:,} samples", f"{peak / 1e6:.0f} MB", wall, "", at_most(peak / 1e6, 300, " MB"))
        shutil.rmtree(source)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory", action="store_true", help="W3 too: a run over a million samples")
    parser.add_argument("--folder", help="where to write; default: the system's temporary folder")
    given = parser.parse_args()
    table = Table("what", "ours", "beside", "ratio", "goal, holds", box=None, pad_edge=False)
    with tempfile.TemporaryDirectory(dir=given.folder) as temporary:
        throughput(Path(temporary), table)
        if given.memory:
            memory(Path(temporary), table)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
