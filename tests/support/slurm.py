"""Slurm's commands on a machine that has none: stand-ins that start the tasks of an array as processes."""

import os
from pathlib import Path

import pytest

from support.running import ROOT


def slurm_stand_in(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Have `sbatch` and `squeue` be the stand-ins.

    They take the options that energon_pack gives them, set the variables that a task of Slurm's sees
    (SLURM_ARRAY_JOB_ID, SLURM_ARRAY_TASK_ID), and answer as Slurm 22.05 does: a number, a line a task, "Invalid job id
    specified".

    Args:
        folder: where they keep what they started.
    """
    patch.setenv("PATH", f"{ROOT / 'tests' / 'support' / 'slurm_stand_in'}{os.pathsep}{os.environ['PATH']}")
    patch.setenv("SLURM_STAND_IN", str(folder))
