"""Packing from and to an object store: `python benchmarks/stores.py [--source FOLDER --processor FOLDER]`.

A server of the S3 protocol on this machine stands for the store, and a proxy before it counts requests and bytes. Each
run is a process with one worker. Its CPU time is compared with that of the same run from disk to disk, each the best of
some. The server and the proxy are those of the tests: PYTHONPATH=tests.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
from timing import at_most, cpu_seconds

from energon_pack.dataset.files import PlanRow
from energon_pack.sources.demo import make_demo_source_and_processor
from energon_pack.sources.source_file import rows_of
from support.samples import chat, noise, write_tar
from support.stores import WHO, Bucket, Seen, store_server

_RUN = "from energon_pack.cli import main; main()"
_NO_BLOCKS = f"""
from energon_pack.run.stores.blocks import BlockCache
from energon_pack.sources import reader, store_objects
store_objects.BLOCKS = BlockCache(most=0)
{_RUN}"""
_NO_ROOM = _NO_BLOCKS.replace(_RUN, f"reader.max_read_ahead_bytes = lambda: 32 << 20\n{_RUN}")
_SMALL_SHARDS = "output.max_shard_bytes=15e6"


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


class Case(NamedTuple):
    """A kind of run: a small and a large source, where to, and what else."""

    small: str
    large: str
    out: str
    code: str = _RUN
    arguments: tuple[str, ...] = ()


class Bench:
    def __init__(self, folder: Path, processor: Path, bucket: Bucket):
        self.folder, self.processor, self.bucket = folder, processor, bucket

    def run(self, source: str, case: Case, cache: str | None = None) -> tuple[float, Seen]:
        """CPU seconds of a run, and what the proxy saw of it.

        Args:
            cache: of another run before; else it has nothing of those before but which template fits the processor.
        """
        with tempfile.TemporaryDirectory(dir=self.folder) as temporary:
            command = [sys.executable, "-c", case.code, "+model=qwen2_5_vl", f"model.processor={self.processor}"]
            command += [f"source.path={source}", f"output.dir={case.out}", "output.name=packed"]
            command += ["executor.num_workers=1", "measure.verify=0", f"cache_dir={cache or temporary}/cache"]
            command += ["max_skipped=1", "packing.max_token_len=4096", "output.overwrite=true", *case.arguments]
            told = {"TMPDIR": temporary, "XDG_CACHE_HOME": f"{self.folder}/user", "OMP_NUM_THREADS": "1"}

            def work() -> None:
                subprocess.run(command, check=True, env={**os.environ, **told}, stdout=subprocess.DEVNULL)

            self.bucket.seen()
            return cpu_seconds(work, 1), self.bucket.seen()

    def best(self, cases: dict[str, Case], rounds: int) -> dict[str, tuple[float, float, Seen]]:
        """Of each case the CPU seconds with the small source and with the large one, each the best of some in turn."""
        found: dict[str, list[tuple[float, float, Seen]]] = {name: [] for name in cases}
        for _ in range(rounds):
            for name, case in cases.items():
                start, _ = self.run(case.small, case)
                found[name].append((start, *self.run(case.large, case)))
        return {
            name: (min(start for start, _, _ in runs), min(seconds for _, seconds, _ in runs), runs[0][2])
            for name, runs in found.items()
        }

    def needed(self, out: str) -> tuple[float, int]:
        """What the second half of a run has to read: MB of the samples in packs, how many."""
        table = pq.read_table(f"{out}/packed/pack_plan.parquet")
        num_bytes = 0
        for row in rows_of(table, PlanRow):
            places = [(row.record_offset, row.record_size), *((part.offset, part.size) for part in row.parts)]
            num_bytes += sum(max(places)) - min(places)[0] + 512  # with its first header
        return num_bytes / 1e6, table.num_rows


def describe(seen: Seen) -> str:
    counts = dict(seen.counts)
    read, written = counts.pop("bytes read", 0), counts.pop("bytes written", 0)
    requests = ", ".join(f"{number:,} {method}" for method, number in sorted(counts.items()))
    return f"{requests or 'no request'}; {read / 1e6:.1f} MB read, {written / 1e6:.1f} MB written"


def print_reading(what: str, seen: Seen, needed: float, num_samples: int = 0) -> None:
    """Print what was read, beside what had to be.

    Args:
        needed: MB
        num_samples: that this is, where they are not read from end to end.
    """
    num_gets, read = seen.counts["GET"], seen.counts["bytes read"] / 1e6
    samples = f" of {num_samples:,} samples: a GET each would be {num_samples / needed:.1f} per MB" * bool(num_samples)
    print(f"  {what}: {num_gets:,} GET, {read:.1f} MB; needed: {needed:.1f} MB{samples}")
    print(f"    {num_gets / needed:.2f} GET per MB of that   {at_most(num_gets / needed, 1.05)}")
    print(f"    {read / needed:.2f} times its bytes   {at_most(read / needed, 1.05)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, help="a folder of tars; by default some are made")
    parser.add_argument("--processor", type=Path, help="of Qwen2.5-VL; by default the demo's")
    parser.add_argument("--samples", type=int, default=1500, help="that are made")
    parser.add_argument("--rounds", type=int, default=3, help="of which the best counts")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary, store_server() as proxy:
        folder = Path(temporary)
        os.environ.update(WHO, AWS_ENDPOINT_URL=proxy.url, MSC_CONFIG=f"{folder}/none.yaml")
        processor = arguments.processor or Path(make_demo_source_and_processor(folder / "demo")[1])
        few, source = make_source(folder / "few", 15), arguments.source or make_source(folder / "s", arguments.samples)
        size = sum(path.stat().st_size for path in source.rglob("*.tar")) / 1e6
        bucket = Bucket("bench", proxy)
        stored = bucket.put_folder(few, "few"), bucket.put_folder(source, "data")
        bench, here = Bench(folder, processor, bucket), f"{folder}/here"
        no_room = "the same, without room on the disk for what was read"
        cases = {
            "from disk to disk": Case(str(few), str(source), here),
            "from the store to disk": Case(*stored, here),
            no_room: Case(*stored, here, _NO_BLOCKS),
            # Energon loads the first shard whole when it checks the dataset: a small one, as beside many.
            "from disk to the store": Case(str(few), str(source), "s3://bench/out", _RUN, (_SMALL_SHARDS,)),
        }
        figures = bench.best(cases, arguments.rounds)
        report = json.loads(Path(here, "packed", "report.json").read_text())
        num_samples = report["samples_in"]
        print(f"{num_samples:,} samples in {len(list(source.rglob('*.tar')))} tars of {size:.1f} MB")
        base = figures.pop("from disk to disk")
        print(f"from disk to disk: {base[1]:.1f} s CPU, {base[0]:.1f} s for 15 samples")
        for name, (start, seconds, seen) in figures.items():
            begun = start - base[0]
            each = 1000 * (seconds - base[1] - begun) / (num_samples - 15)
            print(f"\n{name}: {describe(seen)}")
            print(f"  {begun:.2f} s CPU more to start, {each:.2f} ms more for each sample   {at_most(each, 0.2)}")
            if name == "from the store to disk":
                print_reading("the source", seen, size)
            elif name == no_room:
                print_stages(bench, cases[name], size)


def print_stages(bench: Bench, case: Case, size: float) -> None:
    """Print what each half of a run reads that can keep nothing, the second one in several ways."""
    with tempfile.TemporaryDirectory(dir=bench.folder) as cache:
        _, seen = bench.run(case.large, case._replace(arguments=("stage=lengths",)), cache)
        print_reading("headers; then texts and media, to measure", seen, 2 * size)
        for what, code, arguments in (
            ("packs", _NO_BLOCKS, ()),
            ("packs, no room for those of a shard either", _NO_ROOM, ()),
            (
                "packs in shards of a tenth, each of samples of all tars",
                _NO_BLOCKS,
                (f"output.max_shard_bytes={size / 10:.0f}e6",),
            ),
            (
                "packs in shards of a tenth, packing.window=1",
                _NO_BLOCKS,
                (f"output.max_shard_bytes={size / 10:.0f}e6", "packing.window=1"),
            ),
        ):
            _, seen = bench.run(case.large, case._replace(code=code, arguments=arguments), cache)
            print_reading(what, seen, *bench.needed(case.out))


if __name__ == "__main__":
    main()
