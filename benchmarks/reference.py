"""Packs that refer to media beside packs that copy them, of one plan: `python benchmarks/reference.py`.

By default 4,000 JPEG of about 64 kB with their JSON in eight tars; `--source FOLDER --processor FOLDER` takes others.
Both are packed from one length cache, in turn, best of three; `write` is that stage. Then both are read once through
Energon without workers, in turn, best of three, from a warm page cache: `read` leaves images as bytes, `decoded`
decodes them. In the end every batch of the one is compared with that of the other.
"""

import argparse
import hashlib
import io
import os
import random
import tarfile
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from loading import Decoded, Loaded, add_sample, apart
from megatron.energon import WorkerConfig, get_savable_loader, get_train_dataset
from PIL import Image
from rich.console import Console
from rich.table import Table
from timing import at_most, cpu_and_wall_seconds

from energon_pack import PackedTaskEncoder
from energon_pack.config import MediaIn, ModelConfig, OutputConfig, PackConfig, Rope, SourceConfig
from energon_pack.pack import pack
from energon_pack.sources.demo import make_demo_source_and_processor
from energon_pack.training.batch import VisualInputs

NUM_IMAGES, NUM_SHARDS, TIMES = 4_000, 8, 3
WAYS = [media.value for media in MediaIn]


def make_source(folder: Path) -> None:
    """Images of 224 × 224 with a comment of noise: as large as photographs, and quick to make."""
    folder.mkdir()
    rng, noise = random.Random(0), os.urandom(1 << 20)
    for shard in range(NUM_SHARDS):
        with tarfile.open(folder / f"{shard:03d}.tar", "w") as tar:
            for i in range(NUM_IMAGES // NUM_SHARDS):
                file, start = io.BytesIO(), rng.randrange(len(noise) - 64_000)
                image = Image.new("RGB", (224, 224), (shard * 30, i % 256, 99))
                image.save(file, "JPEG", comment=noise[start : start + 64_000])
                turns = [
                    {"role": "user", "content": "<image>What is this?"},
                    {"role": "assistant", "content": "a colour. " * rng.randint(3, 40)},
                ]
                add_sample(tar, f"{shard}_{i:06d}", turns, file.getvalue())


def packed(source: str, processor: str, folder: Path, media: str, name: str, max_token_len: int) -> dict[str, Any]:
    run = PackConfig(
        model=ModelConfig("qwen2_5_vl", "qwen_vl", processor=processor, rope=Rope.qwen2_5_vl),
        source=SourceConfig(path=source),
        output=OutputConfig(dir=str(folder), name=name, media=MediaIn(media), overwrite=True),
        max_skipped=1.0,
    )
    run.executor.num_workers, run.measure.verify, run.packing.max_token_len = 1, 0.0, max_token_len
    return pack(run)


def packs(dataset: Path, encoder: Any, batch_size: int | None = None) -> Any:
    worker = WorkerConfig(rank=0, world_size=1, num_workers=0)
    settings = {"shuffle_buffer_size": None, "max_samples_per_sequence": None, "repeat": False}
    found = get_train_dataset(dataset, worker_config=worker, batch_size=batch_size, task_encoder=encoder, **settings)
    return get_savable_loader(found, gc_collect_every_n_steps=0)


def read(out: Path) -> dict[tuple[str, str], tuple[float, float, int]]:
    """CPU and wall seconds of an epoch, and its images, for each encoder and each way."""
    found: dict[tuple[str, str], tuple[float, float, int]] = {}
    for _ in range(TIMES):
        for encoder in (Loaded, Decoded):
            for media in WAYS:
                counts: list[int] = []
                cpu, wall = cpu_and_wall_seconds(partial(epoch, out / media, encoder, counts), 1)
                best = found.get((encoder.__name__, media), (cpu, wall, 0))
                found[encoder.__name__, media] = min(cpu, best[0]), min(wall, best[1]), sum(counts)
    return found


def epoch(dataset: Path, encoder: type[Any], counts: list[int]) -> None:
    counts += [len(member) for pack in packs(dataset, encoder()) for member in pack.images]


def digests(dataset: Path, processor: str) -> list[str]:
    """Of every batch, tensor by tensor."""
    torch.set_num_threads(1)
    found = []
    for batch in packs(dataset, PackedTaskEncoder(dataset, processor, tokens_per_second=2), 1):
        digest = hashlib.sha256()
        for name in sorted(batch.keys() - {"positions", "__restore_key__", "__sources__"}):
            value = batch[name]
            items = vars(value).items() if isinstance(value, VisualInputs) else [("", value)]
            for inner, item in items:
                digest.update(f"{name}.{inner}".encode())
                digest.update(item.contiguous().numpy().tobytes() if torch.is_tensor(item) else repr(item).encode())
        found.append(digest.hexdigest())
    return found


def pack_all(source: str, processor: str, out: Path, max_token_len: int) -> dict[str, list[dict[str, Any]]]:
    """What report.json says of each run, both ways in turn; the first, that measures, is not among them."""
    packed(source, processor, out, "reference", "warm", max_token_len)
    runs: dict[str, list[dict[str, Any]]] = {media: [] for media in WAYS}
    for _ in range(TIMES):
        for media in WAYS:
            runs[media].append(packed(source, processor, out, media, media, max_token_len))
    packed(source, processor, out, "reference", "another", max_token_len // 2)
    return runs


def num_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.tar"))


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    arguments.add_argument("--source", help="folder of tars (default: made)")
    arguments.add_argument("--processor", help="folder of the processor (default: the demo's)")
    arguments.add_argument("--max-token-len", type=int, default=8192)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        source = given.source or str(folder / "source")
        if given.source is None:
            make_source(folder / "source")
        processor = given.processor or make_demo_source_and_processor(folder / "demo")[1]
        compare(source, processor, folder / "out", given.max_token_len)


def compare(source: str, processor: str, out: Path, max_token_len: int) -> None:
    runs = apart(pack_all, source, processor, out, max_token_len)
    epochs = apart(read, out)
    batches = {media: apart(digests, out / media, processor) for media in WAYS}
    size = {media: num_bytes(out / media) for media in WAYS}
    table = Table(box=None, pad_edge=False)
    for name in ("", *WAYS, "reference / copy", "goal, holds"):
        table.add_column(name, justify="right" if name else "left")

    def row(name: str, values: list[float], form: str, goal: str = "") -> None:
        ratio = values[1] / values[0]
        table.add_row(name, *(form.format(value) for value in values), f"{ratio:.3f}", goal)

    row("shards, MB", [size[media] / 1e6 for media in WAYS], "{:,.1f}", "")
    for stage in ("write", "check"):
        row(f"{stage}, s", [min(run["seconds"][stage] for run in runs[media]) for media in WAYS], "{:.2f}")
    row("all of packing, s", [min(sum(run["seconds"].values()) for run in runs[media]) for media in WAYS], "{:.2f}")
    for encoder, name in (("Loaded", "read"), ("Decoded", "decoded")):
        of = [epochs[encoder, media] for media in WAYS]
        costs = [1e3 * cpu / images for cpu, _, images in of]
        row(f"{name}, images/s", [images / wall for _, wall, images in of], "{:,.0f}")
        row(f"{name}, CPU ms an image", costs, "{:.3f}", at_most(costs[1] / costs[0], 1.25))
    console = Console(width=120)
    console.print(table)
    console.print(f"{epochs['Loaded', 'copy'][2]:,} images in {runs['copy'][0]['packs']:,} packs;", end=" ")
    same = sum(ours == theirs for ours, theirs in zip(batches["copy"], batches["reference"], strict=True))
    plans = [(out / media / "pack_plan.parquet").read_bytes() for media in WAYS]
    console.print(f"{same:,} of {len(batches['copy']):,} batches are the same,", end=" ")
    console.print(f"plans are {'the same bytes' if plans[0] == plans[1] else 'NOT the same'}")
    console.print(f"packed again for {max_token_len // 2:,} tokens: {num_bytes(out / 'another') / 1e6:,.1f} MB more")


if __name__ == "__main__":
    main()
