"""How a test runs the package: where it is, a command in a folder, and what a test can do without."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from energon_pack.templates.torchvision_shim import prepare_torchvision

#: The checkout, and the real processors and samples beside it.
ROOT = Path(__file__).resolve().parents[2]
REAL = ROOT.parent / "shared" / "real"


def need_torchvision() -> None:
    """Most of transformers' full processors are built only with it."""
    prepare_torchvision()
    pytest.importorskip("torchvision", reason="transformers' full processor needs torchvision")


def command(*arguments: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `python ...` in a folder, offline."""
    variables = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=cwd, env=variables, capture_output=True, text=True, timeout=300
    )
