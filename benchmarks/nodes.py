"""What `executor=slurm` costs, and a model of many nodes: `python benchmarks/nodes.py` (some minutes).

One source of texts is packed on the cores of this machine: by `local`, and by tasks of `slurm` that share a folder.
Then jobs as those that measure are dealt to a node that answers at once, so that only the driver's work is left; and a
node without work is watched, for what it asks of the file system. The model divides what is measured here.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table
from timing import at_least

from energon_pack import __version__
from energon_pack.lengths.schema import LENGTHS_SCHEMA
from energon_pack.lengths.worker import measure
from energon_pack.run.executors.shared.beats import Beat
from energon_pack.run.executors.shared.driver import SharedExecutor
from energon_pack.run.executors.shared.folder import names_in, write
from energon_pack.run.executors.shared.terms import Term, claim_term
from energon_pack.run.executors.shared.wire import encode
from energon_pack.sources.demo import make_demo

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests"))
JOB_SAMPLES, NUM_JOBS, CORES_PER_NODE = 2000, 300, 64


def packing(source: Path, processor: str, out: Path, executors: list[list[str]]) -> tuple[float, float, float]:
    """Wall and CPU seconds of a run by some tasks, and wall seconds of its measuring."""
    for number in range(len(executors)):
        (out / str(number)).mkdir(parents=True)
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    tasks = [
        subprocess.Popen(
            [sys.executable, "-m", "energon_pack", "+model=qwen2_5_vl", f"model.processor={processor}",
             f"source.path={source}", f"output.dir={out}", "output.name=packed", "measure.verify=0",
             "packing.max_token_len=4096", *executor],
            cwd=out / str(number),
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
        )
        for number, executor in enumerate(executors)
    ]  # fmt: skip
    assert [task.wait() for task in tasks] == [0] * len(tasks)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    report = json.loads((out / "packed" / "report.json").read_bytes())
    return time.perf_counter() - start, cpu, float(report["seconds"]["lengths"])


def runs(folder: Path, num_tars: int, table: Table) -> float:
    """Samples a second that one process measures."""
    from support.nodes import write_texts

    source = write_texts(folder / "texts", num_tars, 2000, 400)
    _, processor = make_demo(folder / "demo")
    shared = ["executor=slurm", "executor.launch=one"]
    found = {}
    for name, executors in (
        ("local, 1 worker", [["executor.num_workers=1"]]),
        ("local, 2 workers", [["executor.num_workers=2"]]),
        ("slurm, 1 task of 2", [[*shared, "executor.num_workers=2"]]),
        ("slurm, 2 tasks of 1", [[*shared, "executor.num_workers=1"]] * 2),
    ):
        wall, cpu, lengths = packing(source, processor, folder / name.replace(" ", "").replace(",", "-"), executors)
        found[name] = wall, lengths
        print(f"{name}: {wall:.1f} s, {cpu:.1f} s of CPU, measuring {lengths:.1f} s", file=sys.stderr, flush=True)
        table.add_row(name, f"{wall:.1f} s", f"{cpu:.1f} s", f"measuring {lengths:.1f} s", "")
    ratio = found["local, 2 workers"][0] / found["slurm, 2 tasks of 1"][0]
    table.add_row("speed of 2 tasks against 2 workers", f"{ratio:.2f}×", "", "", at_least(ratio, 0.7, "×"))
    return num_tars * 2000 / found["local, 1 worker"][1]


def rows(num: int) -> pa.Table:
    """As many rows of lengths as a job has."""
    parts = [{"name": "0.jpg", "offset": 1536 * i, "size": 100_000} for i in range(num)]
    columns: dict[str, list[Any]] = {"key": [f"{i:09d}" for i in range(num)], "parts": [[part] for part in parts]}
    columns |= {"record_part": ["json"] * num, "media_type": ["image"] * num}
    numbers = list(range(num))
    arrays = []
    for field in LENGTHS_SCHEMA:
        if field.name in columns:
            arrays.append(pa.array(columns[field.name], field.type))
        elif pa.types.is_integer(field.type):
            arrays.append(pa.array(numbers, field.type))
        else:
            arrays.append(pa.nulls(num, field.type))
    return pa.table(arrays, schema=LENGTHS_SCHEMA)


class Answering(Thread):
    """A machine that has the result of each job as soon as it comes."""

    def __init__(self, term: Term, name: str, num_workers: int, answer: bytes):
        super().__init__(daemon=True)
        self.term, self.name_of, self.num_workers, self.answer, self.ended = term, name, num_workers, answer, Event()
        term.run.inbox(name).mkdir(parents=True)

    def run(self) -> None:
        inbox, number = self.term.run.inbox(self.name_of), 0
        while not self.ended.wait(0.01):
            number += 1
            about = {"num_workers": self.num_workers, "version": __version__, "beat": number}
            write(self.term.run.nodes / f"{self.name_of}.json", json.dumps(about).encode())
            for name in names_in(inbox):
                (inbox / name).unlink()
                write(self.term.run.results / name, self.answer)


def dealing(folder: Path, table: Table) -> tuple[float, float]:
    """CPU seconds of the driver a job, and MB that it takes in and gives out for one.

    The machine that does them knows the answer: nothing is measured.
    """
    samples = rows(JOB_SAMPLES)
    answer = encode(("done", samples))
    term = claim_term(folder / "meeting", None, {})
    assert term is not None
    machine = Answering(term, "a", 16, answer)
    machine.start()
    seconds = 0.0

    def jobs() -> Iterator[Any]:
        for _ in range(NUM_JOBS):
            yield samples

    with SharedExecutor(term, 60.0, lambda: None) as executor:
        start = time.thread_time()
        num = sum(1 for _ in executor.map(measure, jobs()))
        seconds = time.thread_time() - start
    machine.ended.set()
    machine.join()
    assert num == NUM_JOBS
    megabytes = (len(encode((measure, samples))) + len(answer)) / 1e6
    a_job = seconds / NUM_JOBS
    said = f"{megabytes:.2f} MB in and out", f"{1e3 * a_job / megabytes:.1f} ms a MB"
    table.add_row("driver, CPU a job of 2,000 samples", f"{1e3 * a_job:.2f} ms", *said, "4 files made a job")
    return a_job, megabytes


def idling(place: Path, table: Table) -> float:
    """Calls that a node without work makes of the shared folder in a second: those that reach a server."""
    term = claim_term(place / "idle", None, {"version": __version__})
    assert term is not None
    script = f"""
import os, sys, time
counts = dict.fromkeys(("open", "listdir", "rename", "remove"), 0)
def count(event, arguments):
    name = event.removeprefix("os.")
    if name in counts and arguments and str(arguments[0]).startswith({str(place)!r}):
        counts[name] += 1
sys.addaudithook(count)
from threading import Event, Thread
from energon_pack.run.executors.shared.beats import Beat
from energon_pack.run.executors.shared.node import Node
from energon_pack.run.executors.shared.terms import latest_term
from pathlib import Path
ended = Event()
term = latest_term(Path({str(term.folder)!r}))
thread = Thread(target=Node(term, 1, ended).work)
thread.start()
time.sleep(3)
counts.update(dict.fromkeys(counts, 0))
time.sleep(10)
import json
print(json.dumps(counts))
os._exit(0)
"""
    SharedExecutor(term, 60.0, lambda: None).share([])  # what a machine needs: nothing
    with Beat(term.beat, dict):
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    counts = {name: number / 10 for name, number in json.loads(done.stdout).items() if number}
    said = ", ".join(f"{name} {number:.1f}" for name, number in counts.items())
    table.add_row("node without work, calls a second", f"{sum(counts.values()):.1f}", said, "", "")
    return float(sum(counts.values()))


def model(samples_a_second: float, a_job: float, megabytes: float, calls: float, table: Table) -> None:
    dealt = 1 / a_job
    for nodes in (100, 1000):
        wanted = nodes * CORES_PER_NODE * samples_a_second / JOB_SAMPLES
        share = wanted / dealt
        held = 2 * nodes * CORES_PER_NODE
        said = f"driver deals {dealt:,.0f}: {share:.1f} of it is wanted", f"{wanted * megabytes:,.0f} MB/s through it"
        note = f"{held:,} jobs at once, {held * megabytes / 2e3:,.1f} GB; {nodes * calls:,.0f} calls/s of idle nodes"
        table.add_row(f"model, {nodes:,} nodes of {CORES_PER_NODE}: jobs/s", f"{wanted:,.0f}", *said, note)
    enough = dealt * JOB_SAMPLES / samples_a_second / CORES_PER_NODE
    seconds = 1e9 / JOB_SAMPLES * a_job
    in_hours = f"1 B samples: {seconds / 3600:.1f} h of the driver's CPU"
    table.add_row("the driver is busy with", f"{enough:,.0f} nodes", in_hours, "", "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tars", type=int, default=30, help="of 2,000 samples each")
    given = parser.parse_args()
    table = Table("what", "figure", "", "", "goal, note", box=None, pad_edge=False)
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        samples_a_second = runs(place, given.tars, table)
        a_job, megabytes = dealing(place, table)
        calls = idling(place, table)
        model(samples_a_second, a_job, megabytes, calls, table)
    Console(width=200).print(table)


if __name__ == "__main__":
    main()
