"""Energon's inside is asked in few files, so that a new Energon breaks few; a newer one than was tested is tried."""

import ast
import importlib.metadata
from pathlib import Path

import pytest

from energon_pack.task_encoder import PackedTaskEncoder
from support.packed import demo_config, packed, train
from support.running import ROOT

#: files that import more of Energon than `megatron.energon` itself gives
INSIDE = {
    "loading.py",
    "reading.py",
    "task_encoder.py",
    "dataset/energon.py",
    "dataset/referenced.py",
    "verify/videos.py",
}


def test_energons_inside_is_asked_in_few_files() -> None:
    package = ROOT / "energon_pack"
    found = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("megatron.energon.")
    }
    assert found == INSIDE


@pytest.mark.slow
@pytest.mark.skipif(
    int(importlib.metadata.version("megatron-energon").split(".")[0]) < 8, reason="megatron-energon 8 is not installed"
)
def test_energon_8_reads_packs(demo: tuple[Path, Path], cache: Path, tmp_path: Path) -> None:
    folder = packed(demo_config(demo, cache, tmp_path, source__limit=20, packing__max_token_len=800))
    encoder = PackedTaskEncoder(folder, str(demo[1]))
    assert [encoder.encode_sample(pack).members for pack in train(folder)]
