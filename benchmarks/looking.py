"""Looking at one pack of many: `python benchmarks/looking.py [--packs N] [--folder DIR]`.

Ten million packs need 25 GB and some minutes to make; by default a hundred thousand. Shards and plan are as packing
writes them, 4096 packs a shard and four members a pack, the texts of a shard those of the first. Wall seconds are from
the shell: the interpreter and its imports are in them. Cold: the dataset's files are out of the page cache.
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table
from timing import at_most

from energon_pack.dataset.energon import write_metadata
from energon_pack.dataset.files import PLAN, PLAN_SCHEMA
from energon_pack.dataset.shards import WrittenShard
from energon_pack.dataset.tar_writer import TarWriter
from energon_pack.run.files import META_FOLDER
from energon_pack.samples.flavors import DEFAULT
from energon_pack.samples.flavors.base import Conversation
from energon_pack.samples.tokens_part import FORMAT

MEMBERS, SHARD_PACKS = 4, 4096
TIMES = 7
KEY = re.compile(rb"00000000_00000000")


def make_dataset(folder: Path, num_packs: int) -> None:
    """Packs of conversations with all that packing writes beside them."""
    rng = random.Random(0)
    words = [
        "the",
        "cat",
        "sat",
        "on",
        "a",
        "mat",
        "and",
        "saw",
        "how",
        "many",
        "of",
        "them",
        "there",
        "were",
        "in",
        "all",
    ]
    texts = [" ".join(rng.choices(words, k=18)) for _ in range(SHARD_PACKS * MEMBERS * 2)]
    first = [_pack(texts[i * MEMBERS * 2 : (i + 1) * MEMBERS * 2]) for i in range(SHARD_PACKS)]
    written = []
    with pq.ParquetWriter(folder / PLAN, PLAN_SCHEMA, compression="zstd") as plan:
        for shard in range(-(-num_packs // SHARD_PACKS)):
            numbers = range(shard * SHARD_PACKS, min(num_packs, (shard + 1) * SHARD_PACKS))
            plan.write_table(_rows(numbers), row_group_size=len(numbers) * MEMBERS)
            written.append(_write_shard(folder, shard, numbers, first))
    content = {"model": {"name": "qwen2_5_vl", "hub_id": None}}
    manifest = {"flavor": DEFAULT.name, "layout": "neat", "max_token_len": 8192, "num_packs": num_packs}
    write_metadata(folder, written, DEFAULT, "typed", False, {**manifest, "content": content})


def _pack(texts: list[str]) -> bytes:
    """The JSON of a pack, its key zeros."""
    roles = ("user", "assistant")
    turns = [
        [{"role": role, "content": text} for role, text in zip(roles, texts[i : i + 2], strict=True)]
        for i in range(0, len(texts), 2)
    ]
    meta = {
        "format": FORMAT,
        "pack_id": "00000000_00000000",
        "sample_ids": [f"shard_0000.tar/00000000_00000000_{i}" for i in range(MEMBERS)],
        "token_lens": [2000] * MEMBERS,
        "num_supervised": [900] * MEMBERS,
        "total_token_len": 2000 * MEMBERS,
        "fingerprint": "0" * 16,
        "source_parts": [[] for _ in range(MEMBERS)],
    }
    value = DEFAULT.write([Conversation(messages, None, {}, []) for messages in turns], meta)
    return json.dumps(value, separators=(",", ":")).encode()


def _write_shard(folder: Path, shard: int, numbers: range, first: list[bytes]) -> WrittenShard:
    name, starts = f"packed-{shard:06d}.tar", []
    with open(folder / name, "wb", buffering=0) as file:
        tar = TarWriter(file.fileno())
        for number, data in zip(numbers, first, strict=False):
            starts.append(tar.position)
            key = f"0123abcd_{number:08d}"
            tar.add(f"{key}.json", KEY.sub(key.encode(), data))
        starts.append(tar.position)
        tar.end()
    (folder / f"{name}.idx").write_bytes(np.array(starts, "<u8").tobytes())
    return WrittenShard(name, len(numbers), len(numbers) * MEMBERS, 0, 0)


def _rows(numbers: range) -> pa.Table:
    """The rows of the plan of some packs; samples are in no order, as after planning."""
    size = len(numbers) * MEMBERS
    packs = [f"0123abcd_{number:08d}" for number in numbers]
    rng = np.random.default_rng(numbers.start)
    own = {
        "pack": [pack for pack in packs for _ in range(MEMBERS)],
        "key": [f"{pack}_{member}" for pack in packs for member in range(MEMBERS)],
        "record_offset": rng.integers(0, 1 << 40, size),
        "record_size": rng.integers(200, 4000, size),
    }
    same = _same(size)
    arrays = [pa.array(own[field.name], field.type) if field.name in own else same[field.name] for field in PLAN_SCHEMA]
    return pa.table(arrays, schema=PLAN_SCHEMA)


@cache
def _same(size: int) -> dict[str, pa.Array]:
    """The columns that are the same in every shard."""
    values: dict[str, list[Any]] = {
        "shard": ["shard_0000.tar"],
        "media_type": ["text"],
        "token_len": [2000],
        "num_supervised": [900],
        "num_visual_tokens": [0],
        "record_part": ["json"],
        "parts": [[]],
        "positions": [[]],
        "cut": [None],
    }
    return {name: pa.array(value * size, PLAN_SCHEMA.field(name).type) for name, value in values.items()}


def forget(folder: Path) -> None:
    """Put the plan and all else but the shards' own bytes out of the page cache, and these, too."""
    for path in (*folder.glob("*"), *(folder / META_FOLDER).glob("*")):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def look(folder: Path, *arguments: str) -> tuple[tuple[float, float, float], str]:
    """Wall seconds, CPU seconds, peak MB; and what was written."""
    with tempfile.TemporaryFile() as out:
        start = time.perf_counter()
        process = subprocess.Popen([sys.executable, "-m", "energon_pack.inspect", str(folder), *arguments], stdout=out)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        out.seek(0)
        return (seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e3), out.read().decode()


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--packs", type=int, default=100_000)
    given.add_argument("--folder", type=Path, help="keep the dataset there, and use it if it is there")
    arguments = given.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.folder or Path(temporary)) / f"{arguments.packs}"
        if not folder.exists():
            folder.mkdir(parents=True)
            make_dataset(folder, arguments.packs)
            os.sync()
        measure(folder, arguments.packs)


def measure(folder: Path, num_packs: int) -> None:
    """Print a row a way to look."""
    table = Table(title=f"one pack of {num_packs:,}")
    for name in ("what", "median s", "most s", "CPU s", "peak MB", "goal of the median"):
        table.add_column(name, justify="left" if name == "what" else "right")
    numbers = random.Random(1).sample(range(num_packs), TIMES)
    for what, is_cold in (("cold", True), ("warm", False)):
        results = []
        for number in numbers:
            if is_cold:
                forget(folder)
            figures, text = look(folder, str(number))
            assert f"0123abcd_{number:08d}" in text
            results.append(figures)
        _add(table, f"a pack by its number, {what}", results, 1.0)
    keys = [look(folder, f"0123abcd_{number:08d}")[0] for number in numbers]
    _add(table, "a pack by its key, warm", keys, 1.0)
    _add(table, "the dataset, warm", [look(folder)[0] for _ in range(TIMES)], 1.0)
    hits = [look(folder, "--search", f"0123abcd_{number:08d}_2")[0] for number in numbers[:3]]
    _add(table, "--search of a sample, warm", hits, None)
    Console().print(table)


def _add(table: Table, what: str, results: list[tuple[float, float, float]], goal: float | None) -> None:
    seconds, cpu, peaks = ([result[i] for result in results] for i in range(3))
    median = float(np.median(seconds))
    asked = at_most(median, goal, " s") if goal else ""
    table.add_row(what, f"{median:.2f}", f"{max(seconds):.2f}", f"{min(cpu):.2f}", f"{max(peaks):,.0f}", asked)


if __name__ == "__main__":
    main()
