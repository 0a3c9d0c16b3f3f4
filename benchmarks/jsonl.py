"""A whole run over SFT JSONL: `python benchmarks/jsonl.py [--lines 100000]`.

Two samples share an image of 24 × 24 pixels, so 100,000 lines have 50,000 files in 50 folders. Samples a second of each
stage by report.json, wall time of the command, and the disk it takes beside the source: the dataset and the cache.
"""

import argparse
import io
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image

from energon_pack.sources.demo import make_demo_source_and_processor

WORDS = ("red", "green", "blue", "round", "square", "small", "large", "left", "right", "above", "below", "circle")


def make_source(folder: Path, num_lines: int) -> Path:
    rng = random.Random(0)
    path = folder / "train.jsonl"
    folder.mkdir()
    with open(path, "w") as lines:
        for i in range(num_lines):
            name = f"{i // 2 % 50:02d}/{i // 2:06d}.jpg"
            if i % 2 == 0:
                image = folder / name
                image.parent.mkdir(exist_ok=True)
                file = io.BytesIO()
                Image.new("RGB", (24, 24), (rng.randrange(256), i % 256, i // 256 % 256)).save(file, "JPEG")
                image.write_bytes(file.getvalue())
            ask, answer = (" ".join(rng.choices(WORDS, k=rng.randint(*span))) for span in ((3, 12), (5, 80)))
            turns = [{"from": "human", "value": f"<image>\n{ask}"}, {"from": "gpt", "value": answer}]
            lines.write(json.dumps({"id": i, "image": name, "conversations": turns}) + "\n")
    return path


def disk_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--flavor", default="packed_multi_mix_qa", help="or packed_captioning")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        _, processor = make_demo_source_and_processor(folder / "demo")
        source = make_source(folder / "source", arguments.lines)
        before = disk_bytes(folder / "source")
        command = [sys.executable, "-m", "energon_pack", "+model=qwen2_5_vl", f"model.processor={processor}"]
        command += ["source=jsonl", f"source.path={source}", f"output.dir={folder}/out", "output.name=packed"]
        start = time.perf_counter()
        subprocess.run([*command, f"output.flavor={arguments.flavor}"], check=True)
        wall = time.perf_counter() - start
        report = json.loads((folder / "out" / "packed" / "report.json").read_text())
        print(f"{arguments.lines:,} lines, whole command {wall:.1f} s: {arguments.lines / wall:,.0f} samples/s")
        for stage in ("lengths", "plan", "write"):
            seconds = report["seconds"][stage]
            print(f"  {stage:8} {seconds:6.1f} s  {arguments.lines / seconds:12,.0f} samples/s")
        assert disk_bytes(folder / "source") == before, "the source was written to"
        dataset, cache = disk_bytes(folder / "out" / "packed"), disk_bytes(folder / "out" / ".cache")
        print(f"disk: source {before / 1e6:.0f} MB, dataset {dataset / 1e6:.0f} MB, cache {cache / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
