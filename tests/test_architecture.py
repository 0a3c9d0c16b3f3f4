"""Arrows between modules point one way, and a training job can import what it needs in any environment."""

import ast
import importlib
import re
from pathlib import Path

import pytest

from support.running import ROOT, command

PACKAGE = ROOT / "energon_pack"

#: module → modules of this package it may import; a newcomer reads them in this order
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "files": {"errors"},
    "table_cache": {"bins", "errors", "files"},
    "heavy": set(),
    "manifest": set(),
    "samples": {"findings", "manifest", "record", "sample", "samples", "timestamps"},
    "sample": {"samples"},
    "bins": {"bins"},
    "splits": {"bins", "errors"},
    "nodes": set(),
    "plan_settings": {"bins", "errors"},
    "template_settings": {"errors"},
    "caps": {"bins", "plan_settings"},
    "progress": set(),
    "dialects": {"sample", "samples"},
    "record": {"dialects", "sample", "samples"},
    "timestamps": {"sample"},
    "video": {"sample", "samples"},
    "headers": {"samples"},
    "media": {"headers", "sample", "samples", "video"},
    "findings": set(),
    "preprocess": {"errors", "media", "sample", "template_settings"},
    "executor": {"errors"},
    "run": {"files", "progress", "run"},
    "hydra_plugin": {"config", "models"},
    "templates": {
        "errors", "files", "heavy", "media", "nodes", "preprocess", "sample", "template_settings", "templates",
    },
    "sources": {"cut", "errors", "files", "manifest", "media", "record", "sample", "samples", "sources", "timestamps"},
    "cut": {"sample"},
    "method": {"run", "samples", "templates"},
    "measuring": {"cut", "method", "sample", "samples", "sources", "templates"},
    "current": {"bins", "errors", "run", "sample", "sources", "table_cache"},
    "draws": {"bins", "errors"},
    "lengths": {
        "bins", "current", "draws", "errors", "measuring", "method", "run", "samples", "sources", "table_cache",
        "templates",
    },
    "processor_inputs": {"media", "templates", "video"},
    "audit": {
        "errors", "files", "heavy", "lengths", "method", "processor_inputs", "record", "run", "sample", "samples",
        "sources", "table_cache", "templates",
    },
    "items": {"bins", "caps", "lengths", "sample", "samples", "splits", "table_cache"},
    "order": {"bins"},
    "plan": {"bins", "caps", "errors", "items", "order", "plan_settings", "sample", "splits"},
    "cutting": {
        "bins", "caps", "cut", "items", "lengths", "measuring", "method", "plan", "plan_settings", "run", "sample",
        "sources", "table_cache", "templates",
    },
    "plan_file": {
        "bins", "caps", "cut", "errors", "items", "measuring", "plan", "plan_settings", "sample", "sources", "splits",
    },
    "tar_writer": {"errors", "sources"},
    "shards": {"files", "manifest", "plan_file", "sample", "samples", "sources", "tar_writer"},
    "choice": {"items", "plan", "plan_settings", "report"},
    "sample_loaders": set(),
    "metadata": {"files", "items", "manifest", "plan", "samples", "shards", "sources", "splits", "templates"},
    "writing": {"items", "method", "packed", "plan", "plan_file", "run", "shards", "splits"},
    "convert": {"draws", "errors", "files", "metadata", "sample", "samples", "shards", "sources", "tar_writer", "tool"},
    "report": {"bins", "errors", "items", "order", "plan", "plan_settings", "progress", "sample"},
    "publish": {"choice", "errors", "files", "manifest", "report", "sources"},
    "resolve": {"config", "demo", "errors", "files", "publish", "report", "sources"},
    "check": {"errors", "heavy", "manifest", "samples", "shards"},
    "metadataset": {"errors", "files", "manifest", "report", "splits", "tool"},
    "demo": {"files"},
    "models": set(),
    "config": {"bins", "errors", "models", "nodes", "plan_settings", "samples", "sources", "template_settings"},
    "validate": {"config", "draws", "errors", "splits"},
    "naming": {"config"},
    "flavors": set(),
    "layout": set(),
    "rope": set(),
    "masks": set(),
    "guards": set(),
    "pixels": {"processor_inputs", "templates"},
    "members": {"layout", "media", "pixels", "processor_inputs", "rope", "sample", "samples", "templates"},
    "batch": {"layout", "masks", "pixels"},
    "packed_seq_params": set(),
    "probe": {"batch", "guards", "layout", "members", "pixels"},
    "task_encoder": {
        "batch", "flavors", "guards", "layout", "loading", "manifest", "members", "pixels", "rope", "samples",
        "templates",
    },
    "loading": {
        "flavors", "manifest", "models", "nodes", "record", "sample", "samples", "template_settings", "templates",
    },
    "pack": {
        "audit", "check", "choice", "config", "current", "cutting", "draws", "executor", "files", "items", "lengths",
        "metadata", "method", "naming", "packed", "plan", "plan_file", "progress", "publish", "report", "resolve",
        "run", "samples", "shards", "splits", "template_settings", "templates", "writing",
    },
    "completion": set(),
    "cli": {"completion", "config", "errors", "models", "naming", "pack", "validate"},
    "tool": {"errors"},
    "packed": {
        "cut", "errors", "findings", "manifest", "packed", "plan_file", "record", "sample", "samples", "sources",
    },
    "checks": {
        "caps", "checks", "cut", "demo", "draws", "errors", "findings", "guards", "loading", "manifest", "media",
        "members", "metadata", "nodes", "packed", "plan_file", "plan_settings", "probe", "record", "run", "sample",
        "samples", "shards", "sources", "splits", "task_encoder", "templates", "timestamps", "video",
    },
    "verify": {
        "checks", "errors", "executor", "findings", "manifest", "packed", "progress", "report", "run", "samples",
        "sources", "splits", "tool",
    },
    "single": {"errors", "packed", "plan_file", "sample", "samples", "sources"},
    "adopt": {"errors", "files", "manifest", "metadata", "packed", "report", "samples", "sources", "splits", "tool"},
    "unpack": {
        "checks", "errors", "files", "findings", "manifest", "packed", "plan_file", "progress", "publish", "report",
        "samples", "single", "sources", "tar_writer", "tool",
    },
    "__main__": {"cli"},
}  # fmt: skip


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "energon_pack" and len(parts) > 1 and parts[1] != "__version__":
                found.add(parts[1])
    return found


def test_no_test_leans_on_another() -> None:
    """What two tests need is in tests/support, and tests may move from folder to folder."""
    tests = sorted((ROOT / "tests").rglob("*.py"))
    names = "|".join(path.stem for path in tests if path.parent.name != "support")
    leans = re.compile(rf"^\s*(from|import) ({names})\b|Path\(__file__\)", re.MULTILINE)
    homes = [ROOT / "tests" / "support" / "running.py", ROOT / "tests" / "test_architecture.py"]
    assert [path.name for path in tests if path not in homes and leans.search(path.read_text())] == []


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_follow_the_order(path: Path) -> None:
    room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if room != "__init__":
        assert imports(path) <= ALLOWED[room]


@pytest.mark.parametrize("face", ["flavors", "loading", "packed_seq_params", "task_encoder"])
def test_a_public_face_says_what_is_public(face: str) -> None:
    module = importlib.import_module(f"energon_pack.{face}")
    assert module.__all__ == sorted(module.__all__)
    assert all(getattr(module, name).__doc__ for name in module.__all__)


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("energon_pack.hydra_plugin", {"torch", "transformers", "pyarrow"}),
        ("energon_pack.cli", {"torch", "transformers", "pyarrow"}),
        ("energon_pack.lengths.cache", {"torch", "transformers", "hydra", "omegaconf", "megatron"}),
        ("energon_pack.dataset.shards", {"torch", "transformers", "hydra", "omegaconf", "megatron"}),
        ("energon_pack.training.layout", {"transformers", "hydra", "omegaconf", "megatron", "pyarrow"}),
        ("energon_pack.task_encoder", {"hydra", "omegaconf", "pyarrow"}),
        ("energon_pack.loading", {"torch", "transformers", "hydra", "omegaconf", "megatron", "pyarrow"}),
    ],
)
def test_imports_stay_light(module: str, absent: set[str], tmp_path: Path) -> None:
    script = f"import sys, {module}; print(sorted(set({sorted(absent)}) & set(sys.modules)))"
    assert command("-c", script, cwd=tmp_path).stdout == "[]\n"
