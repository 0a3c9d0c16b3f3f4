"""What a data worker costs: packed against unpacked, the same images: `python benchmarks/loading.py`.

3,000 JPEG of 256 × 256 pixels with their JSON, as a source that Energon reads unpacked and as packs of 16. CPU is user
and system time of this process and its workers, start-up left out; `decoded` means every image decoded in the worker,
and no pixels sent on. Then one pack of 8,192 tokens: its tokens and layout without pixels, and pixels with decoding
against the processor alone.
"""

import argparse
import io
import json
import multiprocessing
import random
import shutil
import tarfile
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
import yaml
from megatron.energon import DefaultTaskEncoder, WorkerConfig, get_savable_loader, get_train_dataset, stateless
from megatron.energon.flavors import BaseWebdatasetFactory
from PIL import Image
from rich.console import Console
from rich.table import Table
from timing import at_least, at_most

from energon_pack import PackedTaskEncoder
from energon_pack.config import ModelConfig, OutputConfig, PackConfig, Rope, SourceConfig
from energon_pack.pack import pack
from energon_pack.samples.media.image import decode_image
from energon_pack.samples.media.prepared import PreparedMedia
from energon_pack.sources.demo import make_demo_source_and_processor

NUM_IMAGES, SIDE = 3_000, 256


class Loaded(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Reads, and sends on how many images there were."""

    decoder = None
    decode = False

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        images = [image for member in sample.images for image in member] if hasattr(sample, "images") else sample.image
        if self.decode:
            for image in images:
                image.load()
        sample.messages = []
        if hasattr(sample, "images"):
            sample.images = [[None] * len(images)]
        else:
            sample.image = [None]
        return sample


class Decoded(Loaded):
    decode = True


def make_source(folder: Path) -> None:
    """Images of about 20 kB in four tars, prepared for Energon by hand as a user would."""
    rng = random.Random(0)
    noise = np.random.default_rng(0)
    folder.mkdir()
    for shard in range(4):
        with tarfile.open(folder / f"{shard:03d}.tar", "w") as tar:
            for i in range(NUM_IMAGES // 4):
                small = Image.fromarray(noise.integers(0, 255, (48, 48, 3), np.uint8))
                file = io.BytesIO()
                small.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
                turns = [
                    {"role": "user", "content": "<image>What was drawn here?"},
                    {"role": "assistant", "content": "red circles. " * rng.randint(3, 12)},
                ]
                add_sample(tar, f"{shard}_{i:06d}", turns, file.getvalue())


def add_sample(tar: tarfile.TarFile, key: str, turns: list[dict[str, str]], image: bytes) -> None:
    """A conversation and its JPEG."""
    for name, data in ((f"{key}.json", json.dumps({"messages": turns}).encode()), (f"{key}.jpg", image)):
        info = tarfile.TarInfo(name)
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))


def prepare(source: Path, folder: Path) -> None:
    """The source as an Energon dataset of unpacked samples."""
    shutil.copytree(source, folder)
    names = sorted(path.name for path in folder.glob("*.tar"))
    BaseWebdatasetFactory.prepare_dataset(
        folder, names, split_parts_ratio=[("train", 1.0)], shuffle_seed=None, workers=1
    )
    loading = {"__module__": "energon_pack.loading"}
    typed = {
        "sample_type": {"__module__": "energon_pack.flavors", "__class__": "MultiMixQASample"},
        "sample_loader": {**loading, "__function__": "make_sample_loader", "flavor": "multi_mix_qa"},
        "part_filter": {**loading, "__function__": "make_part_filter"},
        "decoder": None,
    }
    (folder / ".nv-meta" / "dataset.yaml").write_text(yaml.safe_dump(typed))


def packed(source: Path, folder: Path, name: str, processor: str, **packing: Any) -> Path:
    run = PackConfig(
        model=ModelConfig("qwen2_5_vl", "qwen_vl", processor=processor, rope=Rope.qwen2_5_vl),
        source=SourceConfig(path=str(source)),
        output=OutputConfig(dir=str(folder), name=name),
    )
    run.executor.num_workers, run.measure.verify = 1, 0.0
    for key, value in packing.items():
        setattr(run.packing, key, value)
    pack(run)
    return folder / name


def cpu_seconds() -> float:
    """Of this process and its workers, user and system."""
    process = psutil.Process()
    return sum(sum(p.cpu_times()[:2]) for p in (process, *process.children(recursive=True)))


def apart(work: Callable[..., Any], *arguments: Any) -> Any:
    """In a process of its own, so that no worker of one measurement lives on in the next."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def measure(dataset: Path, encoder: Any, num_workers: int, num_images: int) -> tuple[float, float, float]:
    """Samples and images a second, CPU ms an image, over about so many images after a first few."""
    worker = WorkerConfig(rank=0, world_size=1, num_workers=num_workers)
    loader = get_savable_loader(
        get_train_dataset(
            dataset, worker_config=worker, batch_size=None, shuffle_buffer_size=None, max_samples_per_sequence=100,
            task_encoder=encoder(),
        ),
        gc_collect_every_n_steps=0,
    )  # fmt: skip
    stream = iter(loader)
    for _ in range(10):
        next(stream)
    start, cpu, images, samples = time.perf_counter(), cpu_seconds(), 0, 0
    while images < num_images:
        sample = next(stream)
        images += sum(map(len, sample.images)) if hasattr(sample, "images") else len(sample.image)
        samples += 1
    wall, cpu = time.perf_counter() - start, cpu_seconds() - cpu
    return samples / wall, images / wall, 1e3 * cpu / images


def best(work: Callable[[], object], times: int = 5) -> float:
    """CPU milliseconds, best of some."""
    seconds = []
    for _ in range(times):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return 1e3 * min(seconds)


def one_pack(dataset: Path, processor: str) -> None:
    """L2: a pack of 8,192 tokens, apart from its pixels and with them."""
    torch.set_num_threads(1)  # as in a data worker
    encoder = PackedTaskEncoder(dataset, processor, layout="neat")
    worker = WorkerConfig(rank=0, world_size=1, num_workers=0)
    settings = {"batch_size": None, "shuffle_buffer_size": None, "max_samples_per_sequence": None}
    sample = next(iter(get_savable_loader(get_train_dataset(dataset, worker_config=worker, **settings))))
    data = [[image.__reduce__()[1][0] for image in member] for member in sample.images]
    pixels, decoded = encoder.members.media_processor, [[decode_image(d) for d in member] for member in data]

    def given(images: list[list[Any]]) -> list[PreparedMedia]:
        return [PreparedMedia(["image"] * len(own), own) for own in images]

    ready = pixels(given(decoded))

    def tokens_and_layout() -> None:
        sample.images = decoded
        encoder.batch([encoder.encode_sample(sample)])

    encoder.members.media_processor = lambda *_: ready  # type: ignore[assignment]
    without = best(tokens_and_layout)
    with_pixels = best(lambda: pixels(given([[decode_image(d) for d in member] for member in data])), 3)
    process = pixels._call._processors[0].image_processor
    alone = best(lambda: process([decode_image(d) for member in data for d in member], return_tensors="pt"), 3)
    num_images = sum(map(len, data))
    share = alone / with_pixels
    table = Table("L2, a pack", "CPU ms", "goal, holds", box=None, pad_edge=False)
    table.title = f"{sum(sample.token_lens)} tokens, {len(data)} members, {num_images} images"
    table.add_row("tokens, positions and layout, without pixels", f"{without:.1f}", at_most(without, 15, " ms"))
    table.add_row("decoding and pixels", f"{with_pixels:.1f}", "")
    table.add_row("decoding and the image processor alone", f"{alone:.1f}", "")
    table.add_row("the same as a share of ours", f"{share:.2f}", at_least(share, 0.9))
    Console(width=100).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=6_000, help="images per measurement")
    arguments = parser.parse_args()
    table = Table("", "workers", "samples/s", "images/s", "CPU ms an image", "goal, holds")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        _, processor = make_demo_source_and_processor(folder / "demo")
        make_source(folder / "source")
        prepare(folder / "source", folder / "unpacked")
        packs = packed(folder / "source", folder, "packs", processor, max_members=16)
        for what, encoder in (("read", Loaded), ("decoded", Decoded)):
            for name, dataset in (("unpacked", folder / "unpacked"), ("packs of 16", packs)):
                for num_workers in (0, 1, 2):
                    a, b, c = apart(measure, dataset, encoder, num_workers, arguments.images)
                    goal = at_most(c, 0.08, " ms") if name == "packs of 16" and what == "read" else ""
                    table.add_row(f"L1 {name}, {what}", str(num_workers), f"{a:,.0f}", f"{b:,.0f}", f"{c:.3f}", goal)
        Console(width=100).print(table)
        one_pack(packed(folder / "source", folder, "long", processor), processor)


if __name__ == "__main__":
    main()
