"""Rows of tables read in order and shuffled, beside pyarrow alone: `python benchmarks/tables.py [--rows 100000]`.

Each row has a text and an image of 14 to 42 kB. `measure` takes texts and both ends of images, in the file's order;
`write` takes texts and images in the order of a plan. pyarrow reads row groups, of which 256 MB are kept, or takes the
rows of a shard of 1 GB in the file's order, and keeps them in a file until their turn. CPU seconds of a process each,
the best of some rounds by turns.
"""

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import accumulate
from multiprocessing import Process
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from energon_pack.run.bounded_memory import LruCache
from energon_pack.sources.named_bytes import json_with_media_names
from energon_pack.sources.storage import open_file
from energon_pack.sources.table_rows import open_cell, row_json

IMAGE = pa.struct({"bytes": pa.binary(), "path": pa.string()})
SCHEMA = pa.schema({"image": IMAGE, "question": pa.string(), "answer": pa.string()})
SHARD_ROWS = 33_000  # about 1 GB
FEW = 400  # rows, of what takes too long for all


def batches(num_rows: int) -> Iterator[pa.RecordBatch]:
    drawn, noise = random.Random(0), np.random.default_rng(0).bytes(4 << 20)
    head = b"\xff\xd8" + noise[:600]
    for start in range(0, num_rows, 1000):
        sizes = [drawn.randrange(14_000, 42_000) for _ in range(min(1000, num_rows - start))]
        places = [drawn.randrange(len(noise) - size) for size in sizes]
        images = [{"bytes": head + noise[at : at + size]} for at, size in zip(places, sizes, strict=True)]
        answers = ["a red circle " * drawn.randint(2, 30) for _ in sizes]
        yield pa.RecordBatch.from_arrays(
            [pa.array(images, IMAGE), ["what is it?"] * len(sizes), answers], schema=SCHEMA
        )


def make(path: Path, num_rows: int, group: int, codec: str) -> None:
    table = pa.Table.from_batches(batches(num_rows))
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=group, compression=codec)
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, SCHEMA) as writer:
            writer.write_table(table, max_chunksize=group)


def by_place(path: str, order: list[int], take: Callable[[int], list[slice]]) -> None:
    file = open_file(path)
    for number in order:
        key = json.loads(row_json(path, file, number, number, 0))["image"].partition("::")[2]
        cell = open_cell(path, key)
        for part in take(cell.size):
            cell.read(part.start, part.stop - part.start)


def json_and_image(rows: pa.Table, index: int) -> tuple[bytes, bytes]:
    (row,) = rows.slice(index, 1).to_pylist()
    return json_with_media_names({**row, "image": "x"}, "x"), row["image"]["bytes"]


def by_groups(path: str, order: list[int], _: object) -> None:
    file, kept = pq.ParquetFile(path), LruCache[int, pa.Table](256 << 20, lambda group: group.nbytes)
    metadata = file.metadata
    firsts = [*accumulate((metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)), initial=0)]
    for number in order:
        group = bisect_right(firsts, number) - 1
        rows = kept.get(group) or kept.put(group, file.read_row_group(group, use_threads=False))
        json_and_image(rows, number - firsts[group])


def sorted_and_kept(path: str, order: list[int], _: object) -> None:
    for begin in range(0, len(order), SHARD_ROWS):
        wanted, places, first = sorted(order[begin : begin + SHARD_ROWS]), {}, 0
        with tempfile.TemporaryFile() as spill:
            for batch in pq.ParquetFile(path).iter_batches(batch_size=100, use_threads=False):
                here = wanted[bisect_left(wanted, first) : bisect_left(wanted, first + batch.num_rows)]
                for number in here:
                    places[number] = spill.tell(), spill.write(b"".join(json_and_image(batch, number - first)))
                first += batch.num_rows
            spill.flush()
            for number in order[begin : begin + SHARD_ROWS]:
                os.pread(spill.fileno(), places[number][1], places[number][0])


WAYS = {"by place": by_place, "pyarrow, groups kept": by_groups, "pyarrow, sorted": sorted_and_kept}


def run_case(way: str, stage: str, path: str) -> None:
    """Print microseconds of CPU a row, and the peak of memory in MB."""
    order = [*range(int(Path(path).stem.split("-")[0]))]
    if stage != "measure":
        random.Random(1).shuffle(order)
    order = order[: FEW if way == "pyarrow, groups kept" and stage == "write" else None]
    ends = (
        (lambda size: [slice(0, 1024), slice(size - 1024, size)])
        if stage == "measure"
        else (lambda size: [slice(0, size)])
    )
    start = time.process_time()
    WAYS[way](path, order, ends)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(1e6 * (time.process_time() - start) / len(order), peak)


def print_disk(num_rows: int, num_rounds: int) -> None:
    """Print what each way costs, for each kind of file on the disk."""
    kinds = [("parquet", group, codec) for group in (100, 1_000) for codec in ("snappy", "none")]
    print("| file | rows a group | codec | stage | way | µs CPU a row | peak MB |\n|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for end, group, codec in [*kinds, ("arrow", 1_000, "none")]:
            path = Path(folder, f"{num_rows}-{group}-{codec}.{end}")
            maker = Process(target=make, args=(path, num_rows, group, codec))  # its memory is none of the readers'
            maker.start()
            maker.join()
            ways = [*WAYS] if end == "parquet" else ["by place"]
            cases = [("by place", "measure"), *((way, "write") for way in ways)]
            found: dict[tuple[str, str], list[tuple[float, float]]] = {case: [] for case in cases}
            for _ in range(num_rounds):
                for case in cases:
                    command = [sys.executable, __file__, "--case", *case, str(path)]
                    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                    cpu, peak = map(float, printed.split())
                    found[case].append((cpu, peak))
            for (way, stage), figures in found.items():
                cpu, peak = min(figures)
                print(f"| {end} | {group:,} | {codec} | {stage} | {way} | {cpu:,.0f} | {peak:,.0f} |", flush=True)
            path.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--case", nargs=3, help="way, stage and file: one process of this benchmark")
    arguments = parser.parse_args()
    if arguments.case:
        run_case(*arguments.case)
    else:
        print_disk(arguments.rows, arguments.rounds)


if __name__ == "__main__":
    main()
