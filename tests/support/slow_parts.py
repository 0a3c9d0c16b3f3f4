"""Run the slow tests part by part, and note what each part came to: `make test-slow PART="NAME …"`.

Without a PART all run. The row of a part in docs/tables/slow.csv is replaced each time that the part runs.
"""

import csv
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

from support.environments import packages_of_processors
from support.running import ROOT

TABLE = ROOT / "docs" / "tables" / "slow.csv"
COLUMNS = "part", "commit", "date", "passed", "failed", "skipped", "minutes", "CPU s", "which failed, why skipped"
#: the beginnings of the paths of each part's test files, below `tests`; a file belongs to the first part that names it
PARTS = {
    "kills": "dataset/test_kills run/test_ray_kills stages/test_parts dataset/test_interleavings sources/test_fuzz",
    "clusters": "stages run/test_ray",
    "stores": "test_tools_on_stores sources/test_stored dataset/test_stored training/test_from_",
    "trainers": "trainers test_recipes test_webdataset test_automodel training/test_trainer training/test_parallel",
    "peers": "dataset/test_their_code sources/test_mixture_spellings templates/test_witnesses templates/test_misfits"
    " dataset/test_other_transformers",
    "labels": "labels/test_frameworks labels/test_training_twins labels/test_dropped labels/test_dialects",
    "truth": "labels lengths",
    "guard": "training/test_attacks training/test_member training/test_tree training/test_other training/test_kinds"
    " training/test_wrapped training/test_kernels training/test_preference",
    "training": "training online loading test_lazy test_task_encoder test_unpack",
    "models": "templates steps test_real",
    "sources": "sources samples test_reading test_map test_mixture test_plugins test_kind",
    "docs": "docs test_packaging test_help test_architecture test_gpu_benchmark",
    "commands": "",
}
#: characters of the reason of a skip
_MOST_WORDS = 160
#: parts whose tests use all of the machine
_ALONE = ("kills", "clusters")
#: parts that need `packages_of_processors`: transformers looks for them when it is imported, before any test
_WITH_PACKAGES_OF_PROCESSORS = ("guard", "training", "models")


def part_of(path: Path) -> str:
    """Return the part that a test file belongs to."""
    name = path.relative_to(ROOT / "tests").as_posix()
    return next(part for part, starts in PARTS.items() if not starts or name.startswith(tuple(starts.split())))


def files_of(part: str) -> list[Path]:
    """Return the test files of a part."""
    return [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if part_of(path) == part]


def run(part: str) -> dict[str, str]:
    """Run the slow tests of a part; return its row of the table."""
    begun, before = time.time(), resource.getrusage(resource.RUSAGE_CHILDREN)
    options = ["-m", "slow", "--timeout", "3600", "-o", "faulthandler_timeout=3500"]
    options += [] if part in _ALONE else ["-n", "2", "--dist", "worksteal"]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", *options, f"--junitxml={report}", *map(str, files_of(part))]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        words = []
        try:
            if part in _WITH_PACKAGES_OF_PROCESSORS:
                environment["PYTHONPATH"] = str(packages_of_processors())
        except OSError as error:
            words.append(str(error))
        code = subprocess.run(command, cwd=ROOT, env={**environment, "OMP_NUM_THREADS": "1"}).returncode
        cases = [*ElementTree.parse(report).iter("testcase")] if report.exists() else []
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    failed = [case.get("name", "") for case in cases if {"failure", "error"} & {child.tag for child in case}]
    said = (" ".join(child.get("message", "").split()) for case in cases for child in case.iter("skipped"))
    reasons = Counter(why if len(why) < _MOST_WORDS else f"{why[:_MOST_WORDS]} …" for why in said)
    words += [*failed, *(f"{number} skipped: {why}" for why, number in reasons.items())]
    if code not in (0, 1):
        words.append(f"pytest ended with {code}")
    figures = len(cases) - len(failed) - reasons.total(), len(failed), reasons.total()
    minutes = (time.time() - begun) / 60
    values = (part, _commit(), time.strftime("%Y-%m-%d"), *map(str, figures), f"{minutes:.0f}", f"{cpu:.0f}")
    return dict(zip(COLUMNS, (*values, "; ".join(words)), strict=True))


def _commit() -> str:
    """Return the commit of this tree, with `-dirty` if a file other than the table is changed."""
    asked = (
        ["describe", "--always"],
        ["status", "--porcelain", "--untracked-files=no", "--", ".", f":(exclude){TABLE}"],
    )
    name, changed = (
        subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.strip() for words in asked
    )
    return f"{name}-dirty" if changed else name


def save(row: dict[str, str]) -> None:
    """Replace a part's row of the table."""
    rows = {part: dict.fromkeys(COLUMNS, "") | {"part": part} for part in PARTS}
    if TABLE.exists():
        with open(TABLE, newline="") as file:
            rows |= {row["part"]: row for row in csv.DictReader(file) if row["part"] in PARTS}
    rows[row["part"]] = row
    with open(TABLE, "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows.values())


def main() -> int:
    asked = sys.argv[1:] or [*PARTS]
    if unknown := [part for part in asked if part not in PARTS]:
        raise SystemExit(f"PART={unknown[0]}: one of {', '.join(PARTS)}")
    rows = []
    for part in asked:
        rows.append(row := run(part))
        save(row)
    for row in rows:
        print(", ".join(f"{name} {value}" for name, value in row.items() if value))
    return int(any(row["failed"] != "0" or "pytest ended" in row[COLUMNS[-1]] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
