"""What training imports of this package: `python benchmarks/imports.py [OTHER_TREE]`, one row a door, by turns.

Each door is opened in a process of its own, on packs of the demo that this tree or the other one wrote. A module counts
if it was imported by then, at the top of a file or later; its lines are the lines of its file.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from energon_pack.sources.demo import make_demo_source_and_processor

HERE = Path(__file__).resolve().parent.parent
#: what no reader of packs should need
FOREIGN = ("jinja2", "hydra", "omegaconf", "tokenizers", "pyarrow")
_COLLATE = "from energon_pack import PackedDataset; packs = PackedDataset(path); packs.collate([packs[0], packs[1]])"
DOORS = {
    "a batch of images": _COLLATE,
    "the task encoder": "from energon_pack import PackedTaskEncoder; PackedTaskEncoder(path)",
    "webdataset": "from energon_pack import packs; packs(path)",
    "guard": "import energon_pack.training.guards",
    "check_trainer": "import energon_pack.trainers.check",
    "lazy": "from energon_pack import LazyPackedDataset",
}
_COUNT = """
import json, sys
path = sys.argv[1]
{door}
files = {{name: module.__file__ for name, module in list(sys.modules.items())
         if name.split(".")[0] == "energon_pack" and getattr(module, "__file__", None)}}
lines = {{name: sum(1 for _ in open(file)) for name, file in files.items()}}
print(json.dumps([lines, [name for name in {foreign} if name in sys.modules]]))
"""


def imported(tree: Path, dataset: Path, door: str) -> tuple[dict[str, int], list[str]]:
    """Open a door of a tree; return the lines of each module of the package then imported, and foreign packages."""
    script = _COUNT.format(door=door, foreign=FOREIGN)
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, "-c", script, str(dataset)], env=environment, capture_output=True, text=True, cwd=dataset
    )
    if done.returncode:
        raise SystemExit(f"{door}: {done.stderr[-600:]}")
    lines, foreign = json.loads(done.stdout.splitlines()[-1])
    return lines, foreign


def packed_demo(tree: Path, folder: Path) -> Path:
    """Pack the demo with a tree; return the dataset."""
    source, processor = make_demo_source_and_processor(folder / "made")
    command = [sys.executable, "-m", "energon_pack", "+model=qwen2_5_vl", f"source.path={source}"]
    command += [f"model.processor={processor}", "output.name=demo", f"output.dir={folder}"]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    subprocess.run(command, check=True, cwd=folder, env=environment, stdout=subprocess.DEVNULL)
    return folder / "demo"


def rooms(lines: dict[str, int]) -> str:
    """Sum up the lines of each room, the largest first."""
    sums: dict[str, int] = {}
    for name, number in lines.items():
        room = name.split(".")[1] if "." in name else name
        sums[room] = sums.get(room, 0) + number
    return " · ".join(f"{room} {number:,}" for room, number in sorted(sums.items(), key=lambda pair: -pair[1])[:8])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", nargs="?", type=Path, help="another checkout, shown first")
    options = parser.parse_args()
    table = Table("door", "tree", "modules", "lines", "foreign", "rooms", box=None)
    for tree in [*([options.other.resolve()] if options.other else []), HERE]:
        with tempfile.TemporaryDirectory() as folder:
            dataset = packed_demo(tree, Path(folder))
            for door, code in DOORS.items():
                lines, foreign = imported(tree, dataset, code)
                row = [door, tree.name, str(len(lines)), f"{sum(lines.values()):,}", " ".join(foreign), rooms(lines)]
                table.add_row(*row)
    Console(width=200).print(table)


if __name__ == "__main__":
    main()
