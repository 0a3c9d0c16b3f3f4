"""What it costs to pack while loading, against shards of the same data: `python benchmarks/lazy.py`.

start      until the first batch, each in a process of its own: lengths to be measured, or in the cache
rate       packs a second and CPU of a loader with 0 and 2 workers: 3,000 JPEG of 256 × 256 pixels, packs of 16
memory     of a loader's workers over 10,000 packs of the built-in demo
a million  conversations whose lengths are in the cache: the start, what a worker is given, another epoch
"""

import argparse
import json
import pickle
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import psutil
from loading import apart, cpu_seconds, make_source, packed
from megatron.energon import WorkerConfig, get_savable_loader, get_train_dataset
from rich.console import Console
from rich.table import Table
from torch.utils.data import DataLoader

from energon_pack import LazyPackedDataset, PackedTaskEncoder, PackSampler
from energon_pack.loading import train_arguments
from energon_pack.online.streaming import StreamingPackedDataset
from energon_pack.sources.demo import make_demo_source_and_processor


def lazy_batches(settings: list[str], num_workers: int) -> Iterator[Any]:
    packs = LazyPackedDataset(settings)
    sampler = PackSampler(packs, 0, 1)
    loader = DataLoader(
        packs, 1, sampler=sampler, collate_fn=packs.collate, num_workers=num_workers,
        persistent_workers=num_workers > 0,
    )  # fmt: skip
    return chain.from_iterable(iter(loader) for _ in range(1_000_000))


def stream_batches(settings: list[str], num_workers: int) -> Iterator[Any]:
    packs = StreamingPackedDataset(settings)
    return iter(DataLoader(packs, 1, collate_fn=packs.collate, num_workers=num_workers))


def stored_batches(folder: Path, processor: str, num_workers: int) -> Iterator[Any]:
    worker = WorkerConfig(rank=0, world_size=1, num_workers=num_workers)
    encoder = PackedTaskEncoder(folder, processor)
    return iter(get_savable_loader(get_train_dataset(folder, **train_arguments(folder, encoder, worker))))


_BATCHES: dict[str, Callable[..., Iterator[Any]]] = {
    "lazy": lazy_batches,
    "streaming": stream_batches,
    "shards": stored_batches,
}


def start_online(kind: str, settings: list[str]) -> float:
    """Seconds until the first batch."""
    start = time.perf_counter()
    next(_BATCHES[kind](settings, 0))
    return time.perf_counter() - start


def start_stored(source: Path, folder: Path, processor: str) -> tuple[float, float]:
    """Seconds of packing, and from there until the first batch."""
    start = time.perf_counter()
    done = packed(source, folder, "packs", processor, max_members=16)
    middle = time.perf_counter()
    next(stored_batches(done, processor, 0))
    return middle - start, time.perf_counter() - middle


def rate(kind: str, arguments: tuple[Any, ...], num_workers: int, num_packs: int) -> tuple[float, float]:
    """Packs a second, and CPU milliseconds of a pack."""
    batches = _BATCHES[kind](*arguments, num_workers)
    for _ in islice(batches, 2 + 2 * num_workers):
        pass
    start, cpu = time.perf_counter(), cpu_seconds()
    for _ in islice(batches, num_packs):
        pass
    return num_packs / (time.perf_counter() - start), 1e3 * (cpu_seconds() - cpu) / num_packs


def memory(settings: list[str]) -> list[tuple[int, int, float]]:
    """Packs, and then MB of this process and of its largest worker."""
    batches, found = lazy_batches(settings, 2), []
    for number, _ in enumerate(islice(batches, 10_000), 1):
        if number in (100, 1_000, 2_000, 5_000, 10_000):
            process = psutil.Process()
            workers = [worker.memory_full_info().uss for worker in process.children()]
            found.append((number, process.memory_full_info().uss >> 20, max(workers) / 2**20))
    return found


def write_texts(path: Path, num: int) -> None:
    words, chance = ["red", "green", "circle", "square", "under", "a", "large", "box"], random.Random(0)
    with path.open("w") as file:
        for _ in range(num):
            texts = [" ".join(chance.choices(words, k=chance.randint(5, 200))) for _ in range(2)]
            turns = [{"role": role, "content": text} for role, text in zip(("user", "assistant"), texts, strict=True)]
            file.write(json.dumps({"messages": turns}) + "\n")


def a_million(settings: list[str], epoch: int) -> dict[str, float]:
    start = time.perf_counter()
    packs = LazyPackedDataset(settings)
    ready = time.perf_counter()
    packs[0]
    first = time.perf_counter()
    packs.set_epoch(epoch)
    state = {**vars(packs), "encoder": None, "_epoch": None}
    return {
        "packs": len(packs),
        "until `len`, s": ready - start,
        "first pack after it, ms": 1e3 * (first - ready),
        "another epoch, s": time.perf_counter() - first,
        "what a worker is given beside its encoder, bytes": len(pickle.dumps(state)),
        "memory of the process that plans, MB": psutil.Process().memory_full_info().uss >> 20,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packs", type=int, default=300, help="of each measurement of the rate")
    parser.add_argument("--million", type=int, default=1_000_000, metavar="SAMPLES", help="of the last part")
    arguments = parser.parse_args()
    console = Console(width=110)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        demo, processor = make_demo_source_and_processor(folder / "demo")
        source = folder / "source"
        make_source(source)
        common = ["+model=qwen2_5_vl", f"model.processor={processor}", "executor.num_workers=1"]
        settings = [*common, f"source.path={source}", "packing.max_members=16"]
        table = Table("start, seconds until the first batch", "cold", "lengths in the cache", box=None)
        for kind in ("lazy", "streaming"):
            own = [*settings, f"output.dir={folder}/{kind}"]
            cold, warm = apart(start_online, kind, own), apart(start_online, kind, own)
            table.add_row(kind, f"{cold:.1f}", f"{warm:.1f}")
        write, load = apart(start_stored, source, folder, processor)
        table.add_row("shards: packing + loading", f"{write:.1f} + {load:.1f}", f"{load:.1f} (packed)")
        console.print(table)

        table = Table("rate", "workers", "packs/s", "CPU ms a pack", box=None)
        for num_workers in (0, 2):
            online = [(kind, ([*settings, f"output.dir={folder}/{kind}"],)) for kind in ("lazy", "streaming")]
            for kind, given in (*online, ("shards", (folder / "packs", processor))):
                packs, cpu = apart(rate, kind, given, num_workers, arguments.packs)
                table.add_row(kind, str(num_workers), f"{packs:.1f}", f"{cpu:.1f}")
        console.print(table)

        table = Table("memory after packs", "loop, MB", "largest worker, MB", box=None)
        small = [
            *common,
            f"source.path={demo}",
            f"output.dir={folder}/small",
            "packing.max_token_len=512",
            "packing.overlong=drop",
        ]
        for number, own, worker in apart(memory, small):
            table.add_row(f"{number:,}", str(own), f"{worker:.0f}")
        console.print(table)

        write_texts(folder / "texts.jsonl", arguments.million)
        many = [*common, "source=jsonl", f"source.path={folder}/texts.jsonl", f"output.dir={folder}/many"]
        begun = time.perf_counter()
        apart(a_million, many, 1)
        print(f"{arguments.million:,} conversations measured and planned in {time.perf_counter() - begun:.0f} s")
        table = Table("a million, from cached lengths", "", box=None)
        for name, value in apart(a_million, many, 2).items():
            table.add_row(name, f"{value:,.1f}")
        console.print(table)


if __name__ == "__main__":
    main()
