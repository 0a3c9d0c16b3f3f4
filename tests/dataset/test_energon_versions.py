"""Energon's inside is asked in few files, so that a new Energon breaks few; a newer one than was tested is tried."""

import ast
import importlib.metadata
from collections.abc import Iterator
from pathlib import Path

import megatron.energon
import pytest
import torch

from energon_pack.loading.task_encoder import PackedTaskEncoder
from support.packed import demo_config, packed, train
from support.running import ROOT

#: files that ask for more of Energon than the names that `megatron.energon` itself gives
INSIDE = {"reading.py", "dataset/energon.py"}


def trees(package: Path) -> Iterator[tuple[str, ast.AST]]:
    for path in sorted(package.rglob("*.py")):
        yield str(path.relative_to(package)), ast.parse(path.read_text())


def owned(package: Path) -> set[str]:
    """Private names that the classes and modules of a package give."""
    names = set()
    for _, tree in trees(package):
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
    return {name for name in names if name.startswith("_") and not name.startswith("__")}


def test_energons_inside_is_asked_in_two_files() -> None:
    """By its modules, or by its private names: another Energon then breaks two files."""
    package, energon = ROOT / "energon_pack", Path(next(iter(megatron.energon.__path__)))
    private = owned(energon) - owned(package) - {*vars(torch.nn.Module())}
    assert "_reading_buffer" in private
    found = set()
    for name, tree in trees(package):
        for node in ast.walk(tree):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if any(module.startswith("megatron.energon.") for module in modules):
                found.add(name)
            if isinstance(node, ast.Attribute) and node.attr in private:
                found.add(name)
    assert found == INSIDE


@pytest.mark.slow
@pytest.mark.skipif(
    int(importlib.metadata.version("megatron-energon").split(".")[0]) < 8, reason="megatron-energon 8 is not installed"
)
def test_energon_8_reads_packs(demo: tuple[Path, Path], cache: Path, tmp_path: Path) -> None:
    folder = packed(demo_config(demo, cache, tmp_path, source__limit=20, packing__max_token_len=800))
    encoder = PackedTaskEncoder(folder, str(demo[1]))
    assert [encoder.encode_sample(pack).members for pack in train(folder)]
