"""Slurm's commands on a machine that has none: stand-ins that run jobs as processes of this machine."""

import os
from pathlib import Path

import pytest

from support.running import ROOT


def slurm_stand_in(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Have `sbatch` and `squeue` be the stand-ins.

    They take the scripts that energon_pack gives them, do what their options say of arrays, logs and dependencies,
    and answer as Slurm 22.05 does: a number, a line a job.

    Args:
        folder: where they keep what they started.
    """
    patch.setenv("PATH", f"{ROOT / 'tests' / 'support' / 'slurm_stand_in'}{os.pathsep}{os.environ['PATH']}")
    patch.setenv("SLURM_STAND_IN", str(folder))
