"""Arrows between modules point one way, and a training job can import what it needs in any environment."""

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path

import pytest

from support.running import ROOT, command

PACKAGE = ROOT / "energon_pack"

#: Rooms and faces: each may import what stands in a line above it, and none in its own. A newcomer reads downwards.
ORDER = """
errors flavors version
run
steps
samples
sources templates
lengths training
plan
dataset
config
loading hydra_plugin
webdataset
report
verify stages
pack trainers
online
automodel
unpack cli metadataset inspect recipes
order
__main__
"""
#: Below all: media, leaves that read bytes, processors, what a pack and its members are.
BELOW = """
errors version run steps
samples.media samples.bytes samples.skip samples.sample samples.member samples.pack_tokens samples.written_tokens
samples.pack_reader samples.input_rules
sources.storage sources.store_objects sources.tar sources.other_formats sources.prepared_folder
templates.full_processor templates.pixels
"""
#: Reading: from packs to batches. Energon fills sample classes of all flavours, with messages.
READING = """
trainers.on_disk webdataset dataset.encoder training
dataset.agreement dataset.folder dataset.input_rules_file dataset.manifest dataset.pack_parts dataset.damaged_shards
dataset.source_media
"""
ENERGON = "loading.task_encoder loading loading.in_order flavors samples"
#: Where reading asks more of the package, because a run asks for it: the file, what it imports there, and when.
ASKED_FOR = {
    ("dataset.manifest", "samples.flavors"): "the flavour is another package's",
    ("dataset.pack_parts", "samples.flavors"): "the flavour is another package's, or another tool packed",
    ("dataset.encoder", "dataset.packing_template"): "another tool packed; or a sample is in no pack",
    ("dataset.source_media", "sources.referenced_media"): "media lie in the source",
    ("loading.task_encoder", "dataset.packing_template"): "Energon packs while it reads",
    ("loading.task_encoder", "plan.sample_measures"): "Energon packs while it reads",
    ("trainers.on_disk", "plan.settings"): "a sampler makes steps even",
    ("trainers.on_disk", "trainers.samplers"): "a trainer takes the packs as rows",
    ("trainers.on_disk", "trainers.collator"): "a trainer takes the packs as rows",
    ("trainers.on_disk", "trainers.dataset_rows"): "a trainer takes the packs as rows",
}
#: Guard: proves a model. Of reading it imports what a batch is.
GUARD = "errors version run training"
#: Modules of training that turn packs into batches: guard has none of them.
ENCODERS = {
    f"training.{name}"
    for name in ("media_inputs", "member_encoder", "pack_encoder", "processor_calls", "rope", "rope_rule")
}
#: The most modules and lines of this package that a door imports, by what `benchmarks/imports.py` measures.
MOST = {"a batch of images": (57, 8_200), "guard": (13, 2_060)}


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def imports(path: Path) -> frozenset[str]:
    """Modules of this package that a file imports, also in functions and for types, without the package's name."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            whole = [(node.module, f"{node.module}.{alias.name}") for alias in node.names]
            names += [name if name.partition(".")[2] in MODULES else module for module, name in whole]
    inside = {name.partition(".")[2] or "__init__" for name in names if name.partition(".")[0] == "energon_pack"}
    return frozenset(inside - {name_of(path)})


def reached(*roots: str, stops: Collection[tuple[str, str]] = ()) -> dict[str, str]:
    """Return all modules that some modules import, themselves or through others, each with one that imports it."""
    found = {root: "" for root in roots}
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        new = {other: name for other in imports(MODULES[name]) if other not in found and (name, other) not in stops}
        found |= new
        waiting += new
    return found


def outside(found: Mapping[str, str], allowed: str) -> list[str]:
    """Say of each module that is in none of these rooms, and is none of these files, who imports it."""
    rooms = tuple(f"{one}." for one in allowed.split())
    return [f"{found[name]} imports {name}" for name in sorted(found) if not f"{name}.".startswith(rooms)]


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_no_test_leans_on_another() -> None:
    """What two tests need is in tests/support, and tests may move from folder to folder."""
    tests = sorted((ROOT / "tests").rglob("*.py"))
    names = "|".join(path.stem for path in tests if "support" not in path.parts)
    leans = re.compile(rf"^\s*(from|import) ({names})\b|Path\(__file__\)", re.MULTILINE)
    homes = [ROOT / "tests" / "support" / "running.py", ROOT / "tests" / "test_architecture.py"]
    assert [path.name for path in tests if path not in homes and leans.search(path.read_text())] == []


def test_imports_follow_the_order() -> None:
    """A circle between rooms would end in one room with everything in it, which nobody can change a part of."""
    lines = ORDER.strip().splitlines()
    height = {room: number for number, line in enumerate(lines) for room in line.split()}
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        room = room_of(path)
        for name in sorted(imports(path)) if room != "__init__" else []:
            other = name.partition(".")[0]
            if other != room and height[other] >= height[room]:
                wrong.append(f"{path.relative_to(PACKAGE)} imports {name}")
    assert wrong == []
    assert {room_of(path) for path in PACKAGE.rglob("*.py")} - {"__init__"} == height.keys()


def test_no_two_files_import_each_other() -> None:
    """Neither at the top, nor in a function, nor for types: a ring of files can only be read and changed as one."""
    ring = {name: imports(path) for name, path in MODULES.items() if name != "__init__"}
    while ends := (ring.keys() - set().union(*ring.values())) | {n for n, own in ring.items() if not own & ring.keys()}:
        ring = {name: others for name, others in ring.items() if name not in ends}
    assert {name: sorted(others & ring.keys()) for name, others in ring.items()} == {}


def test_a_plan_is_computed_and_not_printed() -> None:
    """It is shown by `report`, in a terminal and on a page, and in each with the same figures."""
    printing = {"run.console", "run.progress", "report.pages.html"}
    assert [name for name, path in MODULES.items() if name.startswith("plan.") and printing & imports(path)] == []


def test_few_functions_take_the_whole_config() -> None:
    """A stage takes its own settings (`config.stage_settings`), so that its signature says what it reads."""
    takers = [
        f"{path.relative_to(PACKAGE)}:{node.name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
        and any("PackConfig" in ast.unparse(each.annotation) for each in node.args.args if each.annotation)
    ]
    assert len(takers) <= 20, takers
    of_stages = [taker for taker in takers if taker.startswith("stages/")]
    assert {taker.partition(":")[0] for taker in of_stages} <= {
        "stages/chain.py",
        "stages/places.py",
    }


def test_no_file_imports_the_door() -> None:
    """The door imports every public module for types: who imports it stands in a ring with all of them."""
    assert [name for name, path in MODULES.items() if "__init__" in imports(path)] == []


def test_what_is_below_all_imports_nothing_above() -> None:
    assert outside(reached(*(name for name in MODULES if not outside({name: ""}, BELOW))), BELOW) == []


def test_reading_imports_nothing_of_packing() -> None:
    """A training job is installed where nothing is packed, and a person can read what it runs."""
    roots = [name for name in MODULES if not outside({name: ""}, READING)]
    assert outside(reached(*roots, stops=ASKED_FOR), BELOW + READING) == []
    assert outside(reached(*ENERGON.split()[:3], stops=ASKED_FOR), BELOW + READING + ENERGON) == []
    assert [pair for pair in ASKED_FOR if pair[1] not in imports(MODULES[pair[0]])] == []


def test_guard_imports_of_reading_what_a_batch_is() -> None:
    """It serves those who never use our packs."""
    found = reached("training.guards")
    assert outside(found, GUARD) == []
    assert sorted(ENCODERS & found.keys()) == []
    assert MODULES.keys() >= ENCODERS


@pytest.mark.parametrize("door", MOST)
def test_what_a_door_imports_does_not_grow(door: str, typed_demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each figure is the one of today, rounded up to a hundred lines: it may fall."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    benchmark = importlib.import_module("imports")
    lines, foreign = benchmark.imported(ROOT, typed_demo / "packed/demo-qwen2_5_vl-neat-8192", benchmark.DOORS[door])
    most_modules, most_lines = MOST[door]
    assert len(lines) <= most_modules, sorted(lines)
    assert sum(lines.values()) <= most_lines, sorted(lines)
    assert {"hydra", "omegaconf", "pyarrow"}.isdisjoint(foreign)


FACES = (
    "automodel", "flavors", "loading", "loading.in_order", "loading.task_encoder", "online.lazy", "online.streaming",
    "trainers.on_disk", "trainers.samplers", "webdataset",
)  # fmt: skip


@pytest.mark.parametrize("face", FACES)
def test_a_public_face_says_what_is_public(face: str) -> None:
    module = importlib.import_module(f"energon_pack.{face}")
    assert module.__all__ == sorted(module.__all__)
    assert all(getattr(module, name).__doc__ for name in module.__all__)


_HEAVY = {"torch", "transformers", "hydra", "omegaconf", "megatron", "pyarrow"}


@pytest.mark.parametrize(
    "absent",
    [
        {name: {"torch", "transformers", "pyarrow"} for name in ("hydra_plugin", "cli")},
        {name: _HEAVY - {"pyarrow"} for name in ("lengths.measure", "dataset.shards")},
        {
            "loading": _HEAVY,
            "webdataset": _HEAVY - {"torch"},
            "loading.task_encoder": {"hydra", "omegaconf", "pyarrow"},
        },
    ],
)
def test_imports_stay_light(absent: dict[str, set[str]], tmp_path: Path) -> None:
    """Of modules that are imported one after the other."""
    script = "import importlib, sys\n"
    for module, names in absent.items():
        script += f"importlib.import_module('energon_pack.{module}')\n"
        script += f"print(sorted({names} & set(sys.modules)))\n"
    assert command("-c", script, cwd=tmp_path).stdout == "[]\n" * len(absent)


def test_names_in_yaml_are_there() -> None:
    """Hydra looks a class up when a run starts: one that was renamed ends every run with a traceback."""
    texts = [path.read_text() for path in (ROOT / "conf").rglob("*.yaml")]
    names = {name for text in texts for name in re.findall(r"energon_pack\.[\w.]+\.[A-Z]\w+", text)}
    assert len(names) >= 2
    for module, _, name in (name.rpartition(".") for name in sorted(names)):
        assert hasattr(importlib.import_module(module), name), (module, name)


def test_the_readme_of_a_room_names_files_that_are_there() -> None:
    """A newcomer reads it first, and looks for files that were merged or renamed."""
    for page in PACKAGE.glob("*/README.md"):
        for name in re.findall(r"`([a-z_/]+\.py)`", page.read_text()):
            assert any((folder / name).is_file() for folder in (page.parent, PACKAGE, ROOT)), (page.parent.name, name)


PAGE = (ROOT / "CONTRIBUTING.md").read_text()
#: what somebody may want to add, by the words of its row: all that a newcomer has to look at
ROWS = {
    row.split(" | ")[0].removeprefix("| "): row
    for row in PAGE.partition("| to add |")[2].splitlines()[2:]
    if row.startswith("| a")
}
PATHS = r"(?:energon_pack|conf|tests|docs|benchmarks|recipes)/[\w./-]*"


def test_there_is_a_row_for_whatever_one_may_add() -> None:
    assert {"a model family", "a flavour", "a cap", "a source", "a skip reason", "a batch key"} <= set(ROWS)
    for thing, row in ROWS.items():
        assert "`docs/" in row, thing
        assert "`tests/" in row, thing


def test_every_path_is_there() -> None:
    paths = re.findall(f"`({PATHS})`", PAGE)
    assert len(paths) > 30
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_name_stands_in_a_file_of_its_row() -> None:
    asked, wrong = 0, []
    for row in ROWS.values():
        texts = "".join(
            (ROOT / path).read_text() for path in re.findall(f"`({PATHS})`", row) if (ROOT / path).is_file()
        )
        named = [name for name in re.findall(r"`(\w+)`", row) if re.search("[A-Z_]", name)]
        asked += len(named)
        wrong += [name for name in named if name not in texts]
    assert asked > 20
    assert wrong == []


def test_the_order_of_rooms_is_the_tested_one() -> None:
    tested = (ROOT / "tests" / "test_architecture.py").read_text().partition('ORDER = """\n')[2].partition('"""')[0]
    shown = PAGE.partition("## The order of rooms")[2].partition("```\n")[2].partition("```")[0]
    assert [re.split(r"\s{2,}", line)[0] for line in shown.splitlines()] == tested.splitlines()


@pytest.mark.slow
def test_a_run_opens_no_more_files() -> None:
    """A reader who follows a run opens them, and climbs where a file calls one that imports it."""
    command = [sys.executable, str(ROOT / "benchmarks" / "house.py"), "--walks"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = re.findall(r"^ *(\S.*): files, climbs +(\d+), (\d+)", shown, re.MULTILINE)
    most = {"packing": (165, 21), "a lazy dataset": (111, 4), "a batch": (18, 1)}
    walks = {name: (int(files), int(climbs)) for name, files, climbs in rows}
    assert walks.keys() == most.keys()
    assert [name for name in most if walks[name][0] > most[name][0] or walks[name][1] > most[name][1]] == [], walks
