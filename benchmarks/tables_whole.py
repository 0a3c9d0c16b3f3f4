"""The whole command over tables, beside the same samples in tars: `python benchmarks/tables_whole.py [--rows 100000]`.

Each row has a question, an answer and a JPEG of about 28 kB: in a cell of Parquet and Arrow, in a file beside a CSV.
Packs are written under the plan's order, over all rows. CPU seconds of all processes and the largest process's peak of
memory, by turns. `--texts` packs CSVs of texts alone, of a tenth of the rows and of all.
"""

import argparse
import csv
import io
import json
import os
import random
import resource
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from tables import SCHEMA
from whole import WORDS, add_sample

from energon_pack.sources.demo import make_demo_source_and_processor


def pictures(number: int = 200) -> list[bytes]:
    made, noise = [], np.random.default_rng(0)
    for index in range(number):
        small = Image.fromarray(noise.integers(0, 255, (40 + index % 40, 56, 3), np.uint8))
        small.resize((448, 320), Image.Resampling.BICUBIC).save(file := io.BytesIO(), "JPEG", quality=72)
        made.append(file.getvalue())
    return made


def rows(num_rows: int) -> Iterator[tuple[int, str, int]]:
    """Number, answer and number of the picture of each row."""
    drawn = random.Random(0)
    for number in range(num_rows):
        yield number, " ".join(drawn.choices(WORDS, k=drawn.randint(5, 60))), drawn.randrange(200)


def make_table(path: Path, num_rows: int, images: list[bytes]) -> None:
    opened = pa.OSFile(str(path), "wb")
    with (
        opened,
        pq.ParquetWriter(opened, SCHEMA) if path.suffix == ".parquet" else pa.ipc.new_file(opened, SCHEMA) as to,
    ):
        batch: list[dict[str, object]] = []
        for number, answer, picture in rows(num_rows):
            image = {"bytes": images[picture], "path": f"{number}.jpg"}
            batch.append({"image": image, "question": "What is this?", "answer": answer})
            if len(batch) == 1000 or number == num_rows - 1:
                to.write_table(pa.Table.from_pylist(batch, SCHEMA))
                batch = []


def make_csv(folder: Path, num_rows: int, images: list[bytes]) -> None:
    for number, image in enumerate(images):
        (folder / f"{number}.jpg").write_bytes(image)
    with open(folder / "all.csv", "w", newline="") as file:
        to = csv.writer(file)
        to.writerow(["question", "answer", *["image"] * bool(images)])
        for number, answer, picture in rows(num_rows):
            name = f"i/{number % 100}/{number}.jpg"
            if images:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                os.link(folder / f"{picture}.jpg", folder / name)
            to.writerow([f"What is {number}?", answer, *[name] * bool(images)])
    for number in range(len(images)):
        (folder / f"{number}.jpg").unlink()


def make_tars(folder: Path, num_rows: int, images: list[bytes]) -> None:
    for number, some in groupby(rows(num_rows), key=lambda row: row[0] // 10_000):
        with tarfile.open(folder / f"{number:06}.tar", "w") as tar:
            for key, answer, picture in some:
                turns = [{"role": "user", "content": "<image>What is this?"}, {"role": "assistant", "content": answer}]
                add_sample(tar, f"{key:08}", {"json": json.dumps({"messages": turns}).encode(), "jpg": images[picture]})


def run_once(source: Path, processor: str) -> None:
    """Pack, and print CPU seconds and the peak of memory in MB."""
    with tempfile.TemporaryDirectory(dir=source.parent) as out:
        command = [sys.executable, "-m", "energon_pack", "+model=qwen2_5_vl", f"model.processor={processor}"]
        command += [f"source.path={source}", f"output.dir={out}", "executor.num_workers=1", f"cache_dir={out}/cache"]
        command += ["packing.max_token_len=8192", f"hydra.run.dir={out}/hydra"]
        printed = subprocess.run(command, check=False, capture_output=True, text=True, cwd=out)
        if printed.returncode:
            sys.exit(printed.stdout + printed.stderr)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def compare(num_rows: int, num_rounds: int, texts: bool) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder, images = Path(temporary), pictures()
        processor = make_demo_source_and_processor(folder / "demo")[1]
        sources: dict[str, tuple[Path, int]] = {}
        if texts:
            for number in (num_rows // 10, num_rows):
                (path := folder / f"texts-{number}").mkdir()
                make_csv(path, number, [])
                sources[f"CSV of {number:,} texts"] = path, number
        else:
            for name in ("tars", "parquet", "arrow", "csv"):
                (path := folder / name).mkdir()
                if name in ("parquet", "arrow"):
                    make_table(path / f"all.{name}", num_rows, images)
                else:
                    (make_tars if name == "tars" else make_csv)(path, num_rows, images)
                sources[name] = path, num_rows
        print("| source | rows | CPU s, by turns | µs CPU a row, the best | peak MB |\n|---|---|---|---|---|")
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in sources}
        for _ in range(num_rounds):
            for name, (source, _) in sources.items():
                command = [sys.executable, __file__, "--once", str(source), processor]
                printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                cpu, peak = map(float, printed.split())
                found[name].append((cpu, peak))
                print(f"{name}: {cpu:.1f} CPU s, {peak:,.0f} MB", file=sys.stderr, flush=True)
        for name, figures in found.items():
            turns = " · ".join(f"{cpu:.1f}" for cpu, _ in figures)
            each, peak = 1e6 * min(figures)[0] / sources[name][1], max(peak for _, peak in figures)
            print(f"| {name} | {sources[name][1]:,} | {turns} | {each:,.0f} | {peak:,.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--texts", action="store_true", help="CSVs of texts alone")
    parser.add_argument("--once", nargs=2, help="a source and a processor: one process of this benchmark")
    arguments = parser.parse_args()
    if arguments.once:
        run_once(Path(arguments.once[0]), arguments.once[1])
    else:
        compare(arguments.rows, arguments.rounds, arguments.texts)


if __name__ == "__main__":
    main()
