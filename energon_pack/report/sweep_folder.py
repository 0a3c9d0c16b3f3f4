"""Where the jobs of a sweep leave what they came to: one folder, whatever process a launcher runs them in.

    on_multirun_start ──the folder, in the environment──► each job leaves <number>.json there ──► sweep.html

Nothing heavy is imported: Hydra loads this before every run.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from energon_pack.errors import PackError, SamplesLost
from energon_pack.run.files import naming_place, write_whole

_FOLDER = "ENERGON_PACK_SWEEP"
_JOBS = "sweep_jobs"  # nothing else is in it: it is emptied
_UNFINISHED = "it did not end: it was killed, or is still at work"


class SweepFolder(Callback):
    """Tells the jobs of a sweep where its folder is: theirs may be elsewhere, where the sweep is over output.dir."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        folder = Path(os.path.abspath(str(config.hydra.sweep.dir)))
        for path in [
            *_left_in(folder),
            *(folder / _JOBS).glob("*.claim"),
        ]:  # by an earlier sweep that was given the same folder
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
        self._leave()

    def same_as(self, target: str, settings: str) -> int | None:
        """The job before that leaves the same in the same place, which need not be done twice; None: there is none.

        Args:
            target: what this job writes.
            settings: all that what it writes depends on.

        Raises:
            PackError: another job writes there with other settings.
        """
        mine = {"number": self._about["number"], "settings": settings}
        claim = self._path.with_name(f"{hashlib.sha256(target.encode()).hexdigest()[:16]}.claim")
        made = claim.with_suffix(f".{mine['number']}")
        write_whole(made, json.dumps(mine).encode(), sync=False)
        try:
            os.link(made, claim)  # of jobs that begin together one is the first
        except FileExistsError:
            first = json.loads(claim.read_bytes())
        else:
            return None
        finally:
            made.unlink()
        if first["settings"] != settings:
            raise PackError(
                f"job {first['number']} of this sweep writes {target}, too, with other settings: leave output.name out,"
                " or have a swept setting in it, as in 'output.name=mine-${packing.max_token_len}'"
            )
        self._about |= {"error": None, "same_as": first["number"]}
        self._leave()
        return int(first["number"])

    def done(self, page: Path, figures: Mapping[str, Any], max_dropped_tokens: float) -> None:
        """It ended well.

        Args:
            max_dropped_tokens: `packing.max_dropped_tokens`.
        """
        self._about |= {"error": None, "page": os.path.abspath(page), "figures": figures}
        self._about["max_dropped_tokens"] = max_dropped_tokens
        self._leave()

    def failed(self, error: PackError) -> None:
        """It ended with an error; one that lost too much left a page all the same."""
        page = error.page if isinstance(error, SamplesLost) else None
        self._about |= {"error": str(error), "page": page and os.path.abspath(page)}
        self._leave()

    def _leave(self) -> None:
        folder = self._path.parent
        with naming_place("hydra.sweep.dir", folder):
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(self._path, json.dumps(self._about).encode(), sync=False)


def jobs_of(folder: Path) -> list[dict[str, Any]]:
    """What the jobs left, by their numbers; one that is the same as another has what that one left."""
    jobs = {job["number"]: job for job in (json.loads(path.read_bytes()) for path in _left_in(folder))}
    for job in jobs.values():
        if (first := job.get("same_as")) is not None:
            job.update({key: value for key, value in jobs[first].items() if key not in ("number", "settings")})
    return [jobs[number] for number in sorted(jobs)]


def _left_in(folder: Path) -> list[Path]:
    return list((folder / _JOBS).glob("*.json"))
