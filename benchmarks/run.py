"""Figures of the main job, one command: `make bench`.

Machines are shared and noisy, so each figure is CPU seconds (user + system, children included), best of three, beside
the same work done the usual way in the same process. `--processor FOLDER` measures with a real processor.
"""

import argparse
import os
import random
import shutil
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from energon_pack.bins import best_fit_decreasing, lower_bound
from energon_pack.demo import make_demo
from energon_pack.measuring import MeasureJob, measure
from energon_pack.record import ReadSettings
from energon_pack.sources.find import Shard
from energon_pack.sources.wds import index_shard
from energon_pack.tar_writer import TarWriter
from energon_pack.templates import ModelSettings, prepare_template

Row = tuple[str, str, str, str]


def cpu_seconds(work: Callable[[], object]) -> float:
    """Best of three."""

    def once() -> float:
        before = os.times()
        work()
        after = os.times()
        return sum(after[:4]) - sum(before[:4])

    return min(once() for _ in range(3))


def shard_of(path: Path) -> Shard:
    status = path.stat()
    return Shard(path.name, str(path), status.st_size, status.st_mtime_ns)


def index(folder: Path) -> Row:
    """Headers of a tar of 100,000 members."""
    path = folder / "many.tar"
    with open(path, "wb", buffering=0) as file:
        tar = TarWriter(file.fileno())
        for i in range(50_000):
            tar.add(f"sample_{i:08d}.0.jpg", bytes(700))
            tar.add(f"sample_{i:08d}.json", b"{}")
        tar.end()

    def theirs() -> None:
        with tarfile.open(path, "r:") as tar:
            assert sum(1 for _ in tar) == 100_000

    ours, usual = cpu_seconds(lambda: index_shard(shard_of(path))), cpu_seconds(theirs)
    return (
        "index a tar, samples grouped",
        f"{100_000 / ours:,.0f} members/s",
        f"tarfile, ungrouped {100_000 / usual:,.0f}",
        f"{usual / ours:.1f}×",
    )


def bins() -> Row:
    """A million long-tailed lengths into packs of 8,192."""
    rng = np.random.default_rng(0)
    lens = np.clip(rng.lognormal(6, 1.1, 1_000_000), 1, 8192).astype(np.int64)
    seconds = cpu_seconds(lambda: best_fit_decreasing(lens, 8192))
    num_bins, bound = best_fit_decreasing(lens, 8192).num_bins, lower_bound(lens, 8192)
    return "pack 1M lengths", f"{seconds:.2f} s", f"packs {num_bins:,}, bound {bound:,}", f"{num_bins / bound:.5f}"


def lengths(source: Path, template_folder: str) -> Row:
    """The demo's samples, repeated: JSON, image headers, chat template, tokens, labels."""
    path = sorted(source.glob("*.tar"))[0]
    table = index_shard(shard_of(path))
    job = MeasureJob(str(path), table, template_folder, ReadSettings())
    num_tokens = sum(measure(job)["token_len"].to_pylist())  # the template is loaded now
    seconds = cpu_seconds(lambda: [measure(job) for _ in range(10)])
    return (
        "measure image and text samples",
        f"{10 * table.num_rows / seconds:,.0f} samples/s",
        f"{num_tokens / table.num_rows:,.0f} tokens each",
        "",
    )


def write(folder: Path) -> Row:
    """400 MB of members of 100 kB, in random source order, beside `cp` of the same bytes."""
    source, num, size = folder / "source.bin", 4000, 100_000
    source.write_bytes(os.urandom(size) * num)
    order = random.Random(0).sample(range(num), num)

    def ours() -> None:
        fd = os.open(source, os.O_RDONLY)
        with open(folder / "out.tar", "wb", buffering=0) as file:
            tar = TarWriter(file.fileno())
            for i in order:
                tar.copy(f"{i:08d}.jpg", fd, i * size, size)
            tar.end()
        os.close(fd)

    def cp() -> None:
        shutil.copyfile(source, folder / "copy.bin")

    mb = num * size / 1e6
    a, b = cpu_seconds(ours), cpu_seconds(cp)
    return "write a shard", f"{mb / a:,.0f} MB/s", f"copyfile {mb / b:,.0f}", f"{b / a:.2f} of it"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processor", help="folder of a Qwen-VL processor; default: the demo's")
    processor = parser.parse_args().processor
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        source, built_in = make_demo(folder / "demo")
        template_folder = prepare_template(ModelSettings("qwen_vl", processor or built_in), folder)
        rows = [index(folder), lengths(Path(source), template_folder), bins(), write(folder)]
    table = Table("what", "per CPU second, or CPU seconds", "beside", "ratio", box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    console = Console(width=120)
    console.print(table)
    console.print(f"{time.perf_counter() - start:.0f} s in all")


if __name__ == "__main__":
    main()
