"""The folder in which the jobs of a sweep leave their results, whatever process a launcher runs them in.

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
from energon_pack.run.files import reporting_full_disk, write_atomically

_FOLDER_VARIABLE = "ENERGON_PACK_SWEEP"
_JOBS_FOLDER = "sweep_jobs"  # a folder for results only, because a new sweep empties it
_UNFINISHED = "it did not end: it was killed, or is still at work"


class SweepFolderCallback(Callback):
    """Hydra callback that puts the folder of a sweep into the environment, where all of its jobs find it.

    The folders of the jobs themselves may lie elsewhere, if the sweep is over output.dir.
    """

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        folder = Path(os.path.abspath(str(config.hydra.sweep.dir)))
        for path in [
            *_result_files(folder),
            *(folder / _JOBS_FOLDER).glob("*.claim"),
        ]:  # left by an earlier sweep with the same folder
            path.unlink(missing_ok=True)
        os.environ[_FOLDER_VARIABLE] = str(folder)


def sweep_folder() -> Path | None:
    """Return the folder of the sweep that this process is part of; None: it is part of none."""
    folder = os.environ.get(_FOLDER_VARIABLE)
    return Path(folder) if folder else None


def remove_sweep_from_environment() -> None:
    """Remove the sweep's folder from the environment, so that a command which a job calls is no job of the sweep."""
    os.environ.pop(_FOLDER_VARIABLE, None)


class SweepJobFile:
    """Writes the state of one job of a sweep to `<number>.json` in the sweep's folder: at its start, and at its end."""

    def __init__(self, folder: Path, number: int, overrides: Sequence[str]):
        self._path = folder / _JOBS_FOLDER / f"{number}.json"
        pairs = (override.partition("=") for override in overrides)
        settings = {key.lstrip("+"): value for key, _, value in pairs}
        self._about: dict[str, Any] = {"number": number, "settings": settings, "error": _UNFINISHED, "page": None}
        self._write()

    def claim_or_find_same_job(self, target: str, settings: str) -> int | None:
        """Return the number of an earlier job with this target and these settings: this job need not do its work again.

        None: there is no such job, and this one has to do the work.

        Args:
            target: the place that this job writes to.
            settings: everything that the written bytes depend on.

        Raises:
            PackError: another job writes there with other settings.
        """
        mine = {"number": self._about["number"], "settings": settings}
        claim = self._path.with_name(f"{hashlib.sha256(target.encode()).hexdigest()[:16]}.claim")
        made = claim.with_suffix(f".{mine['number']}")
        write_atomically(made, json.dumps(mine).encode(), sync=False)
        try:
            os.link(made, claim)  # if jobs start together, only one can make this link
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
        self._write()
        return int(first["number"])

    def read_figures_of_job(self, job_number: int) -> Mapping[str, Any]:
        """Read the figures of another job, by its number; empty: it has not ended yet, or it failed."""
        job: dict[str, Any] = json.loads(self._path.with_name(f"{job_number}.json").read_bytes())
        return {} if job["error"] else job.get("figures") or {}

    def write_success(self, page: Path, figures: Mapping[str, Any], max_dropped_tokens: float) -> None:
        """Write that the job succeeded, with its page and its figures."""
        self._about |= {"error": None, "page": os.path.abspath(page), "figures": figures}
        self._about["max_dropped_tokens"] = max_dropped_tokens
        self._write()

    def write_failure(self, error: PackError, max_dropped_tokens: float = 0.0) -> None:
        """Write that the job ended with an error; one that lost too many samples has a page and figures."""
        page, figures = (error.page, error.figures) if isinstance(error, SamplesLost) else (None, None)
        self._about |= {"error": str(error), "page": page and os.path.abspath(page), "figures": figures}
        self._about["max_dropped_tokens"] = max_dropped_tokens
        self._write()

    def _write(self) -> None:
        folder = self._path.parent
        with reporting_full_disk("hydra.sweep.dir", folder):
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, json.dumps(self._about).encode(), sync=False)


def read_sweep_jobs(folder: Path) -> list[dict[str, Any]]:
    """Read the results of a sweep's jobs from its folder, ordered by job number.

    Each is the dict that `SweepJobFile` wrote. A job that repeats another one gets that job's results.
    """
    jobs = {job["number"]: job for job in (json.loads(path.read_bytes()) for path in _result_files(folder))}
    for job in jobs.values():
        if (first := job.get("same_as")) is not None:
            job.update({key: value for key, value in jobs[first].items() if key not in ("number", "settings")})
    return [jobs[number] for number in sorted(jobs)]


def _result_files(folder: Path) -> list[Path]:
    return list((folder / _JOBS_FOLDER).glob("*.json"))
