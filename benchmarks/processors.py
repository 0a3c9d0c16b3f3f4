"""Does each processor class of transformers have its media counted exactly, and by what?

    python benchmarks/processors.py --results processors.jsonl --save docs/tables/processors.csv   # half an hour
    python benchmarks/processors.py --only Qwen3VLProcessor MiniCPMV4_6Processor

A small processor of each class that writes text for images or videos is made from its own defaults, `model=auto`
chooses what counts its media, and the ids of samples of noise are compared with those of the class's full call: other
sizes than those that `model=auto` looks at itself. What differs is a fault: the command fails.

Results are lines of JSON, one for each class; what is in the file is not run again.
"""

import argparse
import csv
import importlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import processor_table
from processor_classes import Found, processor_classes, quiet, said, save_dummy

from energon_pack.errors import PackError
from energon_pack.samples.skip import Skip
from energon_pack.templates.choose_rules import build_with_best_rules
from energon_pack.templates.identity import UNEVEN_VIDEOS
from energon_pack.templates.settings import ModelConfig, TemplateSettings
from energon_pack.templates.template import Template
from energon_pack.templates.trial import ProcessorTrial

#: the media of each sample: 200 images, 24 clips, some of them beside one of another length, and both
LISTS: list[tuple[str, ...]] = [
    (),
    *[("image",)] * 80,
    *[("image",) * 2] * 24,
    *[("image",) * 3] * 12,
    *[("image",) * 4] * 9,
    *[("video",)] * 16,
    *[("video",) * 2] * 2,
    *[(UNEVEN_VIDEOS, "video", "video")] * 2,
    *[("image", "video"), ("video", "image"), ("image", "image", "video"), ("video", "image", "image")],
]
_SEED = 20261122  # not that of the trial at the start of a run

Row = dict[str, Any]


def main() -> int:
    arguments = _arguments()
    quiet()
    known = _read(arguments.results)
    for one in processor_classes():
        if one.name in known or (arguments.only and one.name not in arguments.only):
            continue
        known[one.name] = row = row_of(one, [(), *LISTS[1 :: arguments.every]])
        with arguments.results.open("a") as lines:
            lines.write(json.dumps(row) + "\n")
        print(_line(row), flush=True)
    if arguments.save:
        with arguments.save.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(processor_table.table(list(known.values())))
    differing = [row["name"] for row in known.values() if row["difference"]]
    if differing:
        print(f"counted, and not as the full processor: {', '.join(differing)}", file=sys.stderr)
    return 1 if differing else 0


def row_of(one: Found, lists: Sequence[Sequence[str]]) -> Row:
    """What was found for a class.

    Args:
        lists: the kinds of the media of each sample that is compared.
    """
    row: Row = {"name": one.name, "kinds": one.kinds, "template": "", "refused": "", "difference": "", "left_out": {}}
    row |= {"compared": {}, "ms": {}, "tried": {}}
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, one.name)
        try:
            save_dummy(one.name, folder)
        except Exception as error:  # foreign code
            return {**row, "refused": f"not built: {said(error)}"}
        model = ModelConfig(name="auto", template="auto", processor=str(folder), add_special_tokens=None)
        try:
            template, choice = build_with_best_rules(TemplateSettings(model), folder)
        except PackError as error:
            return {**row, "refused": str(error).replace(str(folder), one.name)}
        row |= {"template": choice.template, "left_out": choice.left_out}
        row["tried"] = {tried.template: tried.why_not.replace(str(folder), one.name) for tried in choice.tried}
        trial = ProcessorTrial(_SEED, lists)
        row["ms"] = {kind: _milliseconds(template, trial, kind) for kind in one.kinds if kind in template.media_tokens}
        for kind, outcome in trial.outcomes(template).items():
            if kind in choice.left_out:
                continue
            row["compared"][kind] = [outcome.num_compared, outcome.num_refused]
            if outcome.difference:
                row["difference"] = outcome.difference
    return {**row, "seconds": round(time.perf_counter() - start, 1)}


def _milliseconds(template: Template, trial: ProcessorTrial, kind: str) -> float | None:
    """The median for a sample with one medium of a size that was not asked for before."""
    taken = []
    for one in trial.samples:
        if [medium.kind for medium in one.sample.media] != [kind]:
            continue
        start = time.process_time()  # others may be at work on this machine
        try:
            template.encode(one.sample)
        except Skip:
            continue
        taken.append(time.process_time() - start)
    return round(1e3 * statistics.median(taken), 3) if taken else None


def _read(path: Path) -> dict[str, Row]:
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {row["name"]: row for row in rows}


def _line(row: Row) -> str:
    left_out = "; ".join(f"no {kind}: {why}" for kind, why in row["left_out"].items())
    told = row["difference"] or row["refused"] or left_out
    return f"{row['name']:38} {row['template']:12} {row['compared']} {row['ms']} {told[:200]} {row.get('seconds', '')}"


def _arguments() -> argparse.Namespace:
    about = importlib.import_module(__name__).__doc__
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", help="names of classes")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="compare every Nth of the samples alone")
    parser.add_argument("--results", type=Path, default=Path("processors.jsonl"), help="JSON lines, read and added to")
    parser.add_argument("--save", type=Path, help="write the table there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
