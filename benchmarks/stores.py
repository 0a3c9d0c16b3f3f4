"""Packing from and to an object store: `python benchmarks/stores.py [--source FOLDER --processor FOLDER]`.

A server of the S3 protocol on this machine stands for the store, and a proxy before it counts requests and bytes. Each
run is a process with one worker, and keeps nothing for the next; its CPU time is compared with that of the same run
from disk to disk. The server and the proxy are those of the tests: PYTHONPATH=tests.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from timing import at_most, cpu_seconds

from energon_pack.sources.demo import make_demo
from support.samples import chat, noise, write_tar
from support.stores import WHO, Bucket, Seen, store_server

_RUN = "from energon_pack.cli import main; main()"
_KEEPING_NOTHING = f"""
from energon_pack.run.stores.blocks import Blocks
from energon_pack.sources import blockwise
blockwise.BLOCKS = Blocks(most=0)
{_RUN}"""


def make_source(folder: Path, num_samples: int) -> Path:
    """Tars of 150 samples with an image of about 100 kB each."""
    folder.mkdir()
    for start in range(0, num_samples, 150):
        members: dict[str, bytes] = {}
        for number in range(start, min(start + 150, num_samples)):
            members[f"{number:06}.json"] = chat("<image>What is it?", f"Number {number}. " * 20)
            members[f"{number:06}.png"] = noise(number, 180)
        write_tar(folder / f"{start:06}.tar", members)
    return folder


class Base(NamedTuple):
    """CPU seconds of a run from disk to disk: of a few samples, and of all."""

    start: float
    seconds: float


class Bench:
    def __init__(self, folder: Path, processor: Path, bucket: Bucket, num_bytes: int):
        self.folder, self.processor, self.bucket, self.num_bytes = folder, processor, bucket, num_bytes

    def run(self, source: str, out: str, code: str = _RUN) -> tuple[float, int, Seen]:
        """CPU seconds, samples, and what the proxy saw of a run; its cache and temporary files are its own."""
        with tempfile.TemporaryDirectory(dir=self.folder) as temporary:
            command = [sys.executable, "-c", code, "+model=qwen2_5_vl", f"model.processor={self.processor}"]
            command += [f"source.path={source}", f"output.dir={out}", "output.name=packed", "output.overwrite=true"]
            command += ["executor.num_workers=1", "measure.verify=0", f"cache_dir={temporary}/cache"]
            command += ["max_skipped=1", "packing.max_token_len=4096"]
            environment = {**os.environ, "TMPDIR": temporary, "XDG_CACHE_HOME": temporary, "OMP_NUM_THREADS": "1"}

            def work() -> None:
                subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)

            self.bucket.seen()
            seconds = cpu_seconds(work, 1)
        seen = self.bucket.seen()
        report = Path(out, "packed", "report.json")
        text = report.read_text() if report.exists() else self.bucket.read("out/packed/report.json").decode()
        return seconds, json.loads(text)["samples_in"], seen

    def compare(self, what: str, small: tuple[str, str], large: tuple[str, str], code: str, base: Base) -> Seen:
        """Print what a run costs beside one from disk to disk: to start, and then for each sample.

        Args:
            small, large: source and output of two runs.
        """
        start, num_few, _ = self.run(*small, code)
        seconds, num_samples, seen = self.run(*large, code)
        begun = start - base.start
        each = 1000 * (seconds - base.seconds - begun) / (num_samples - num_few)
        print(f"\n{what}: {describe(seen)}")
        print(f"  {begun:.2f} s CPU more to start, {each:.2f} ms more for each sample   {at_most(each, 0.2)}")
        return seen

    def reading(self, seen: Seen) -> None:
        """Figures of what was read, with their goals."""
        num_gets, share = seen.counts["GET"], seen.counts["bytes read"] / self.num_bytes
        per_mb = num_gets / (self.num_bytes / 1e6)
        print(f"  {per_mb:.2f} GET per MB of the source     {at_most(per_mb, 1.05)}")
        print(f"  {share:.2f} times its bytes               {at_most(share, 1.05)}")


def describe(seen: Seen) -> str:
    counts = dict(seen.counts)
    read, written = counts.pop("bytes read", 0), counts.pop("bytes written", 0)
    requests = ", ".join(f"{number:,} {method}" for method, number in sorted(counts.items()))
    return f"{requests or 'no request'}; {read / 1e6:.1f} MB read, {written / 1e6:.1f} MB written"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, help="a folder of tars; by default some are made")
    parser.add_argument("--processor", type=Path, help="of Qwen2.5-VL; by default the demo's")
    parser.add_argument("--samples", type=int, default=1500, help="that are made")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary, store_server() as proxy:
        folder = Path(temporary)
        os.environ.update(WHO, AWS_ENDPOINT_URL=proxy.url, MSC_CONFIG=f"{folder}/none.yaml")
        processor = arguments.processor or Path(make_demo(folder / "demo")[1])
        few, source = make_source(folder / "few", 15), arguments.source or make_source(folder / "s", arguments.samples)
        num_bytes = sum(path.stat().st_size for path in source.rglob("*.tar"))
        bucket = Bucket("bench", proxy)
        small, large = bucket.put_folder(few, "few"), bucket.put_folder(source, "data")
        bench = Bench(folder, processor, bucket, num_bytes)
        here = f"{folder}/here"
        start, _, _ = bench.run(str(few), here)
        seconds, num_samples, _ = bench.run(str(source), here)
        base = Base(start, seconds)
        number = len(list(source.rglob("*.tar")))
        what = f"{num_samples:,} samples in {number} tars of {num_bytes / 1e6:.1f} MB"
        print(f"{what}: {seconds:.1f} s CPU from disk to disk")
        bench.reading(bench.compare("from the store to disk", (small, here), (large, here), _RUN, base))
        what = "the same, without room on the disk for anything of the source"
        bench.reading(bench.compare(what, (small, here), (large, here), _KEEPING_NOTHING, base))
        there = "s3://bench/out"
        bench.compare("from disk to the store", (str(few), there), (str(source), there), _RUN, base)


if __name__ == "__main__":
    main()
