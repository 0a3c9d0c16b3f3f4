"""Where the jobs of a sweep leave what they came to: one folder, whatever process a launcher runs them in.

    on_multirun_start ──the folder, in the environment──► each job leaves <number>.json there ──► sweep.html

Nothing heavy is imported: Hydra loads this before every run.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from energon_pack.errors import PackError, SamplesLost
from energon_pack.run.files import write_whole

_FOLDER = "ENERGON_PACK_SWEEP"
_JOBS = "sweep_jobs"  # nothing else is in it: it is emptied
_UNFINISHED = "it did not end: it was killed, or is still at work"


class SweepFolder(Callback):
    """Tells the jobs of a sweep where its folder is: theirs may be elsewhere, where the sweep is over output.dir."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        folder = Path(os.path.abspath(str(config.hydra.sweep.dir)))
        for path in _left_in(folder):  # by an earlier sweep that was given the same folder
            path.unlink(missing_ok=True)
        os.environ[_FOLDER] = str(folder)


def sweep_folder() -> Path | None:
    """The folder of the sweep that this process is part of."""
    folder = os.environ.get(_FOLDER)
    return Path(folder) if folder else None


def forget_sweep() -> None:
    """A command that is called by a job of a sweep is none of its jobs."""
    os.environ.pop(_FOLDER, None)


class SweepJob:
    """A job leaves what it is at its start, and what it came to at its end.

    Args:
        folder: of the sweep.
        number: of the job.
        overrides: as Hydra gives them to it.
    """

    def __init__(self, folder: Path, number: int, overrides: Sequence[str]):
        self._path = folder / _JOBS / f"{number}.json"
        pairs = (override.partition("=") for override in overrides)
        settings = {key.lstrip("+"): value for key, _, value in pairs}
        self._about: dict[str, Any] = {"number": number, "settings": settings, "error": _UNFINISHED, "page": None}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._leave()

    def done(self, page: Path, figures: Mapping[str, Any]) -> None:
        """It ended well."""
        self._about |= {"error": None, "page": os.path.abspath(page), "figures": figures}
        self._leave()

    def failed(self, error: PackError) -> None:
        """It ended with an error; one that lost too much left a page all the same."""
        page = error.page if isinstance(error, SamplesLost) else None
        self._about |= {"error": str(error), "page": page and os.path.abspath(page)}
        self._leave()

    def _leave(self) -> None:
        write_whole(self._path, json.dumps(self._about).encode(), sync=False)


def jobs_of(folder: Path) -> list[dict[str, Any]]:
    """What the jobs left, by their numbers."""
    return sorted((json.loads(path.read_bytes()) for path in _left_in(folder)), key=lambda job: int(job["number"]))


def _left_in(folder: Path) -> list[Path]:
    return list((folder / _JOBS).glob("*.json"))
