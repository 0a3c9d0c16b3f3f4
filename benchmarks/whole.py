"""The whole command, in CPU seconds of all its processes: what a sample costs, what starting costs, and small shards.

A sample's cost is the slope between two sizes of a source, so that starting is apart from it.
"""

import argparse
import io
import json
import random
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table
from timing import at_least, at_most, cpu_seconds

from energon_pack.sources.demo import make_demo_source_and_processor

NUM_PICTURES = 40
WORDS = "the of a picture shows house tree with under sky people and red".split()  # noqa: SIM905


def pictures() -> list[bytes]:
    """JPEGs of about 120 kB."""
    noise = np.random.default_rng(0)
    made = []
    for i in range(NUM_PICTURES):
        file = io.BytesIO()
        small = Image.fromarray(noise.integers(0, 255, (80 + i, 120, 3), np.uint8))
        small.resize((640, 426 + i), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
        made.append(file.getvalue())
    return made


def add_sample(tar: tarfile.TarFile, key: str, files: Mapping[str, bytes]) -> None:
    """Write a sample into a tar. `files`: extension → bytes."""
    for part, data in files.items():
        info = tarfile.TarInfo(f"{key}.{part}")
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))


def make_tars(folder: Path, num_tars: int, num_samples: int, images: list[bytes]) -> Path:
    """Tars of so many samples each; without images, of text."""
    folder.mkdir()
    rng = random.Random(num_tars)
    for number in range(num_tars):
        with tarfile.open(folder / f"{number:06d}.tar", "w") as tar:
            for i in range(num_samples):
                answer = " ".join(rng.choices(WORDS, k=rng.randint(20, 120)))
                ask = "<image>\nWhat is this?" if images else "What is this?"
                turns = [{"role": "user", "content": ask}, {"role": "assistant", "content": answer}]
                files = {"json": json.dumps({"messages": turns}).encode()}
                files |= {"jpg": rng.choice(images)} if images else {}
                add_sample(tar, f"{i:06d}", files)
    return folder


def seconds(source: Path, out: Path, processor: str, *settings: str) -> float:
    """CPU seconds of one command."""
    command = [sys.executable, "-m", "energon_pack", "+model=qwen2_5_vl", f"model.processor={processor}"]
    command += [f"source.path={source}", f"output.dir={out}", "output.overwrite=true", "executor.num_workers=1"]
    return cpu_seconds(lambda: subprocess.run([*command, *settings], check=True, stdout=subprocess.DEVNULL), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--samples", type=int, default=8_000, help="of the larger source of images (120 kB each, twice)"
    )
    most = parser.parse_args().samples
    few = most // 8
    table = Table("what", "measured", "beside", "goal, holds", box=None, pad_edge=False)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        _, processor = make_demo_source_and_processor(folder / "demo")
        images = pictures()
        small = make_tars(folder / "small", 1, 10, images)
        first = seconds(small, folder / "out", processor)
        again = seconds(small, folder / "out", processor, "packing.max_token_len=4096")
        table.add_row("start-up, first run", f"{first:.1f} s", "10 samples", at_most(first, 6, " s"))
        table.add_row("start-up, lengths in the cache", f"{again:.1f} s", "10 samples", at_most(again, 2.5, " s"))

        costs = []
        for number in (few, most):
            source = make_tars(folder / f"images{number}", 4, number // 4, images)
            costs.append(seconds(source, folder / "out", processor, "measure.verify=0"))
        rate = (most - few) / (costs[1] - costs[0])
        beside = f"{few:,} samples {costs[0]:.1f} s, {most:,} samples {costs[1]:.1f} s"
        table.add_row("tars of images to packs, slope", f"{rate:,.0f}/s", beside, at_least(rate, 5000, "/s"))

        sources = [make_tars(folder / f"text{n}", n, 3000 // n, []) for n in (3, 3000)]
        large, many = (seconds(source, folder / "out", processor, "stage=plan") for source in sources)
        beside = f"3 tars {large:.1f} s, 3,000 tars {many:.1f} s"
        table.add_row(
            "3,000 samples in as many tars, to the plan", f"{many / large:.1f}×", beside, at_most(many / large, 4, "×")
        )
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
