"""The files of a run's staging folder, and how a folder is removed that another run may use."""

import os
import shutil
import uuid
from contextlib import suppress
from pathlib import Path

from energon_pack.dataset.done_shards import DONE_SUFFIX
from energon_pack.dataset.files import PLAN
from energon_pack.run.files import TEMPORARY_SUFFIX, write_whole

#: folder with what `stage=write` reads beside the plan, and its file that is written last
JOBS_FOLDER, ABOUT_FILE = ".jobs", "about.json"
IDENTITY_FILE, GONE_SUFFIX = ".identity", ".gone"


def remove_folder(path: Path) -> None:
    """Remove a folder that another run may use: it is renamed first, so that the other run can't find it any more."""
    gone = path.with_name(f"{uuid.uuid4().hex}{GONE_SUFFIX}")
    with suppress(FileNotFoundError):
        os.rename(path, gone)
        shutil.rmtree(gone, ignore_errors=True)


def remove_run_files(staging: Path) -> None:
    """Remove all that a published dataset lacks: a plan's jobs, the marks of the run and of its shards, half a file."""
    shutil.rmtree(staging / JOBS_FOLDER, ignore_errors=True)
    left_by_kills = staging.glob(f"*{TEMPORARY_SUFFIX}")
    for path in (staging / IDENTITY_FILE, *staging.glob(f"*{DONE_SUFFIX}"), *left_by_kills):
        path.unlink(missing_ok=True)


def remove_all_but_shards(staging: Path, identity: str) -> None:
    """Remove everything but finished shards, and a plan, from a staging folder; make it if it does not exist."""
    if not staging.exists():
        staging.mkdir(parents=True)
        write_whole(staging / IDENTITY_FILE, identity.encode())
    finished = {path.name.removesuffix(".idx") for path in staging.glob("*.tar.idx")}
    kept = {
        IDENTITY_FILE,
        JOBS_FOLDER,
        PLAN,
        *finished,
        *(f"{name}{end}" for name in finished for end in (".idx", DONE_SUFFIX)),
    }
    for path in staging.iterdir():
        if path.name not in kept:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
