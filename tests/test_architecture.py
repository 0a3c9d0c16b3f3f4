"""Arrows between modules point one way, and a training job can import what it needs in any environment."""

import ast
import importlib
import re
from pathlib import Path

import pytest

from support.running import ROOT, command

PACKAGE = ROOT / "energon_pack"

#: Rooms and faces: each may import what stands in a line above it, and none in its own. A newcomer reads downwards.
ORDER = """
errors flavors pages version
run
steps
samples
sources templates
lengths training
plan
pooling
dataset
config
reading packed_with
loading dataset_encoder packed_seq_params hydra_plugin
task_encoder webdataset
views
report
verify stages
pack online
samplers
trainers
lazy streaming on_disk
automodel
unpack cli adopt convert metadataset simulate inspect recipes
order try
__main__
"""
#: What a training job may import: it is installed where nothing is packed.
TRAINING = {
    "errors",
    "flavors",
    "run",
    "steps",
    "samples",
    "templates",
    "training",
    "dataset_encoder",
    "loading",
    "reading",
    "dataset.inputs",
    "dataset.manifest",
    "dataset.pack_members",
    "dataset.readable",
    "dataset.referenced",
    "sources.prepared",
    "packed_with",  # only for samples that are in no pack
    "pooling.measuring",
}


def imports(path: Path) -> set[str]:
    """Modules of this package that a file imports, without the package's name."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    inside = (name.partition(".")[2] for name in names if name.startswith("energon_pack."))
    return {name for name in inside if name != "__version__"}


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


@pytest.mark.parametrize("room", ["training", "loading", "reading", "task_encoder", "packed_seq_params", "webdataset"])
def test_training_imports_nothing_of_packing(room: str) -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if room_of(path) == room
        for name in sorted(imports(path))
        if not any(f"{name}.".startswith(f"{allowed}.") for allowed in TRAINING)
    ]
    assert wrong == []


FACES = (
    "automodel", "flavors", "lazy", "loading", "on_disk", "packed_seq_params", "reading", "samplers", "streaming",
    "task_encoder", "webdataset",
)  # fmt: skip


@pytest.mark.parametrize("face", FACES)
def test_a_public_face_says_what_is_public(face: str) -> None:
    module = importlib.import_module(f"energon_pack.{face}")
    assert module.__all__ == sorted(module.__all__)
    assert all(getattr(module, name).__doc__ for name in module.__all__)


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("energon_pack.hydra_plugin", {"torch", "transformers", "pyarrow"}),
        ("energon_pack.cli", {"torch", "transformers", "pyarrow"}),
        ("energon_pack.lengths.measure", {"torch", "transformers", "hydra", "omegaconf", "megatron"}),
        ("energon_pack.dataset.shards", {"torch", "transformers", "hydra", "omegaconf", "megatron"}),
        ("energon_pack.training.layout", {"transformers", "hydra", "omegaconf", "megatron", "pyarrow"}),
        ("energon_pack.webdataset", {"transformers", "hydra", "omegaconf", "megatron", "pyarrow"}),
        ("energon_pack.task_encoder", {"hydra", "omegaconf", "pyarrow"}),
        ("energon_pack.loading", {"torch", "transformers", "hydra", "omegaconf", "megatron", "pyarrow"}),
    ],
)
def test_imports_stay_light(module: str, absent: set[str], tmp_path: Path) -> None:
    script = f"import sys, {module}; print(sorted(set({sorted(absent)}) & set(sys.modules)))"
    assert command("-c", script, cwd=tmp_path).stdout == "[]\n"
