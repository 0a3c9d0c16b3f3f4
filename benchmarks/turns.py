"""This tree and others by turns: `git worktree add /tmp/before REV; python benchmarks/turns.py /tmp/before …`.

Every figure is CPU seconds, user and system, of all processes of one command, the best of some rounds; in a round each
tree runs each command once, one tree right after the other. The slope between two sizes of a source tells what a sample
costs apart from starting. All trees run in this environment, on the same data, each with caches of its own, with one
worker. `--write` writes docs/tables/turns.csv, and what stands between the marks of docs/performance.md.
"""

import argparse
import csv
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from pathlib import Path

from rich.console import Console
from rich.table import Table
from timing import cpu_seconds
from whole import make_tars, pictures

from energon_pack.sources.demo import make_demo_source_and_processor

HERE = Path(__file__).resolve().parent.parent
FEW, MANY, SOME_TEXTS, TEXTS = 1_000, 8_000, 600, 3_000  # samples
TABLE, PAGE = HERE / "docs/tables/turns.csv", HERE / "docs/performance.md"
MARKED = re.compile(r"(?<=<!-- turns -->).*(?=<!-- end -->)")
#: What a training does with packs, without a model.
LOADING = """
import sys
from megatron.energon import WorkerConfig, get_savable_loader, get_train_dataset
from energon_pack.loading import train_arguments
from energon_pack import PackedTaskEncoder
path, processor = sys.argv[1:]
encoder = PackedTaskEncoder(path, processor)
arguments = train_arguments(path, encoder, config := WorkerConfig.default_worker_config(num_workers=0))
number = sum(1 for _ in get_savable_loader(get_train_dataset(path, **arguments, repeat=False)))
assert number, path
"""


class Tree:
    """A checkout, and where its caches and datasets lie."""

    def __init__(self, root: Path, folder: Path, data: Path, processor: str):
        self.root, self.data, self.processor = root, data, processor
        self.name = "this tree" if root == HERE else revision(root)
        self.folder = folder / self.name
        self.folder.mkdir(parents=True)

    def run(self, *command: str) -> float:
        """CPU seconds of a command of Python."""
        paths = {"PYTHONPATH": str(self.root), "XDG_CACHE_HOME": str(self.folder / "xdg")}
        call = [sys.executable, *command]
        environment = {**os.environ, **paths, "OMP_NUM_THREADS": "1"}
        codes: list[int] = []

        def start() -> None:
            quiet = subprocess.DEVNULL
            codes.append(subprocess.run(call, cwd=self.folder, env=environment, stdout=quiet, stderr=quiet).returncode)

        seconds = cpu_seconds(start, 1)
        return math.inf if any(codes) else seconds  # a tree that is too old for it

    def pack(self, source: str, *settings: str) -> float:
        """CPU seconds of packing a source, of which nothing is in the cache unless a run before put it there."""
        command = ["-m", "energon_pack", "+model=qwen2_5_vl", f"model.processor={self.processor}"]
        command += [f"source.path={self.data / source}", "output.dir=out", f"output.name={source}", ONE]
        return self.run(*command, "output.overwrite=true", *settings)

    def forget(self) -> None:
        """Remove its caches: the next run is a first one."""
        for name in ("out", "xdg"):
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def load(self, source: str) -> float:
        """CPU seconds of reading a dataset that was packed with `output.name` as its source."""
        return self.run("-c", LOADING, f"out/{source}", self.processor)


def make_texts(path: Path, number: int) -> None:
    """Conversations of as many different words as 2,700 instructions of Alpaca have, and as long."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 10))) for _ in range(25_000)]
    lines = []
    for _ in range(number):
        texts = [" ".join(rng.choices(words, k=rng.randint(10, 240))) for _ in range(2)]
        turns = [{"role": role, "content": text} for role, text in zip(("user", "assistant"), texts, strict=True)]
        lines.append(json.dumps({"messages": turns}) + "\n")
    path.write_text("".join(lines))


def revision(root: Path) -> str:
    """Return the short name of the commit that is checked out there."""
    command = ["git", "-C", str(root), "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def first_run(tree: Tree, source: str, *settings: str) -> float:
    """A run that finds no cache."""
    tree.forget()
    return tree.pack(source, *settings)


ONE = "executor.num_workers=1"
FIGURES: dict[str, Callable[[Tree], float]] = {
    "10 images, first run": lambda tree: first_run(tree, "ten"),
    "10 images again": lambda tree: tree.pack("ten"),
    "600 texts, first run": lambda tree: first_run(tree, "few.jsonl"),
    "3,000 texts, first run": lambda tree: first_run(tree, "many.jsonl"),
    "3,000 texts again": lambda tree: tree.pack("many.jsonl"),
    "1,000 images, first run": lambda tree: first_run(tree, "few"),
    "1,000 images again": lambda tree: tree.pack("few"),
    "8,000 images, first run": lambda tree: first_run(tree, "many"),
    "8,000 images again": lambda tree: tree.pack("many"),
    "8,000 images through a loader": lambda tree: tree.load("many"),
}
#: what one more sample costs: two figures, and how many samples lie between them
SLOPES = {
    "one more text, first run": ("3,000 texts, first run", "600 texts, first run", TEXTS - SOME_TEXTS),
    "one more image, first run": ("8,000 images, first run", "1,000 images, first run", MANY - FEW),
    "one more image again": ("8,000 images again", "1,000 images again", MANY - FEW),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", type=Path, nargs="+", help="checkouts of other revisions")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write docs/tables/turns.csv")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        _, processor = make_demo_source_and_processor(folder / "demo")
        images, data = pictures(), folder / "data"
        data.mkdir()
        for name, number in (("few", FEW), ("many", MANY)):
            make_tars(data / name, 4, number // 4, images)
        make_tars(data / "ten", 1, 10, images)
        make_texts(data / "few.jsonl", SOME_TEXTS)
        make_texts(data / "many.jsonl", TEXTS)
        trees = [Tree(root.resolve(), folder / "runs", data, processor) for root in [*options.trees, HERE]]
        best = {tree.name: dict.fromkeys(FIGURES, math.inf) for tree in trees}
        for _ in range(options.rounds):
            for figure, measure in FIGURES.items():
                for tree in trees:
                    best[tree.name][figure] = min(measure(tree), best[tree.name][figure])
    rows = [*_rows(best)]
    table = Table(*rows[0], box=None, pad_edge=False)
    for row in rows[1:]:
        table.add_row(*row)
    Console(width=120).print(table)
    if options.write:
        write(rows)


def _rows(best: dict[str, dict[str, float]]) -> Iterator[list[str]]:
    """Yield the cells of the table: each figure by tree, and the last tree's beside that of the first one."""
    yield ["CPU, one worker", *best, "last / first"]
    for figure in FIGURES:
        yield [figure, *_cells([seconds[figure] for seconds in best.values()], "s")]
    for figure, (large, small, number) in SLOPES.items():
        slopes = [1000 * (seconds[large] - seconds[small]) / number for seconds in best.values()]
        yield [figure, *_cells(slopes, "ms")]


def _cells(values: Sequence[float], unit: str) -> list[str]:
    cells = [f"{value:.2f} {unit}" if math.isfinite(value) else "–" for value in values]
    ratio = values[-1] / values[0]
    return [*cells, f"{ratio:.2f}" if math.isfinite(ratio) and math.isfinite(values[0]) else "–"]


def write(rows: Sequence[Sequence[str]]) -> None:
    """Write the table of docs/, with the date, and what a million samples cost."""
    header = f"{rows[0][0]}; best of three rounds on {date.today()}"
    with TABLE.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([[header, *rows[0][1:]], *rows[1:]])
    text, image = (row[-2] for row in rows if row[0] in [*SLOPES][:2])
    minutes = [round(1e3 * float(slope.split()[0]) / 60) for slope in (text, image)]
    cells = f"[{text} and {image} a sample](tables/turns.csv) | {minutes[0]} and {minutes[1]} minutes"
    PAGE.write_text(MARKED.sub(cells, PAGE.read_text()))


if __name__ == "__main__":
    main()
