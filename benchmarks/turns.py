"""This tree and another one by turns: `git worktree add /tmp/before REV; python benchmarks/turns.py /tmp/before`.

Every figure is CPU seconds, user and system, of all processes of one command, the best of some rounds; in a round each
tree runs each command once, one tree right after the other. The slope between two sizes of a source tells what a sample
costs apart from starting. Both trees run in this environment, on the same data, each with caches of its own.
"""

import argparse
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table
from timing import cpu_seconds
from whole import make_tars, pictures

from energon_pack.sources.demo import make_demo

HERE = Path(__file__).resolve().parent.parent
FEW, MANY, TEXTS = 1_000, 8_000, 3_000  # samples
#: What a training does with packs, without a model.
LOADING = """
import sys
from megatron.energon import WorkerConfig, get_savable_loader, get_train_dataset
from energon_pack.loading import train_arguments
from energon_pack.task_encoder import PackedTaskEncoder
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
        self.folder = folder / root.name
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
        command += [f"source.path={self.data / source}", "output.dir=out", "output.overwrite=true"]
        return self.run(*command, *settings)

    def forget(self) -> None:
        """Remove its caches: the next run is a first one."""
        for name in ("out", "xdg"):
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def load(self, source: str) -> float:
        """CPU seconds of reading a dataset that was packed with `output.name` as its source."""
        return self.run("-c", LOADING, f"out/{source}", self.processor)


def make_texts(path: Path) -> None:
    """Conversations of as many different words as 2,700 instructions of Alpaca have, and as long."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 10))) for _ in range(25_000)]
    lines = []
    for _ in range(TEXTS):
        texts = [" ".join(rng.choices(words, k=rng.randint(10, 240))) for _ in range(2)]
        turns = [{"role": role, "content": text} for role, text in zip(("user", "assistant"), texts, strict=True)]
        lines.append(json.dumps({"messages": turns}) + "\n")
    path.write_text("".join(lines))


def first_run(tree: Tree, source: str, *settings: str) -> float:
    """A run that finds no cache."""
    tree.forget()
    return tree.pack(source, *settings)


ONE = "executor.num_workers=1"
FIGURES: dict[str, Callable[[Tree], float]] = {
    "3,000 texts, first run": lambda tree: first_run(tree, "texts.jsonl", "source=jsonl"),
    "10 images, first run": lambda tree: first_run(tree, "ten"),
    "10 images again": lambda tree: tree.pack("ten", ONE),
    "1,000 images to lengths": lambda tree: tree.pack("few", ONE, "stage=lengths"),
    "8,000 images to lengths": lambda tree: tree.pack("many", ONE, "stage=lengths"),
    "1,000 images, lengths in the cache": lambda tree: tree.pack("few", ONE, "measure.verify=0", "output.name=few"),
    "8,000 images, lengths in the cache": lambda tree: tree.pack("many", ONE, "measure.verify=0", "output.name=many"),
    "1,000 images through a loader": lambda tree: tree.load("few"),
}


def per_sample(name: str, seconds: dict[str, float]) -> float:
    """Milliseconds of one more image, of figures that end in `name`."""
    few, many = (seconds[f"{number:,} images{name}"] for number in (FEW, MANY))
    return 1000 * (many - few) / (MANY - FEW)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=Path, help="a checkout of another revision")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        _, processor = make_demo(folder / "demo")
        images, data = pictures(), folder / "data"
        data.mkdir()
        for name, number in (("few", FEW), ("many", MANY)):
            make_tars(data / name, 4, number // 4, images)
        make_tars(data / "ten", 1, 10, images)
        make_texts(data / "texts.jsonl")
        (folder / "before").symlink_to(given.tree.resolve())
        (folder / "now").symlink_to(HERE)
        trees = {name: Tree(folder / name, folder / "runs", data, processor) for name in ("before", "now")}
        best: dict[str, dict[str, float]] = {name: {} for name in trees}
        for _ in range(given.rounds):
            for figure, measure in FIGURES.items():
                for name, tree in trees.items():
                    best[name][figure] = min(measure(tree), best[name].get(figure, math.inf))
    Console(width=120).print(_table(best))


def _table(best: dict[str, dict[str, float]]) -> Table:
    table = Table("CPU", "before", "now", "now / before", box=None, pad_edge=False)
    rows = {figure: [seconds[figure] for seconds in best.values()] for figure in FIGURES}
    for figure, (before, now) in rows.items():
        told = (f"{seconds:.2f} s" if seconds < math.inf else "–" for seconds in (before, now))
        table.add_row(figure, *told, f"{now / before:.2f}" if now < math.inf > before else "–")
    slopes = [
        ("one more image, measured", " to lengths"),
        ("one more image, planned and written", ", lengths in the cache"),
    ]
    totals = [0.0, 0.0]
    for said, name in slopes:
        before, now = (per_sample(name, seconds) for seconds in best.values())
        totals = [totals[0] + before, totals[1] + now]
        table.add_row(said, f"{before:.3f} ms", f"{now:.3f} ms", f"{now / before:.2f}")
    table.add_row("one more image, both", f"{totals[0]:.3f} ms", f"{totals[1]:.3f} ms", f"{totals[1] / totals[0]:.2f}")
    return table


if __name__ == "__main__":
    main()
