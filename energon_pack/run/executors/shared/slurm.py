"""Slurm: what it says of this process, and how a run submits itself."""

import os

from energon_pack.run.executors.settings import ExecutorConfig

_JOB = ("SLURM_ARRAY_JOB_ID", "SLURM_JOB_ID")


def launch_of(settings: ExecutorConfig) -> str | None:
    """A word that is the same in all processes that were started together; None: nothing says which these are."""
    return settings.launch or next((os.environ[name] for name in _JOB if name in os.environ), None)
