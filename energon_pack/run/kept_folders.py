"""Keep folders that took long to make in the user's cache, for other folders of output."""

import logging
import os
import shutil
from contextlib import suppress
from pathlib import Path

from energon_pack.run.files import is_intact, make_once
from energon_pack.run.user_cache import user_cache_folder

_log = logging.getLogger(__name__)
#: folders of a kind that are kept: a template with a large tokenizer takes 10 to 30 MB
_MOST_FOLDERS = 8


def restore_kept_folder(kind: str, folder: Path) -> bool:
    """Make a folder like the one of its name that `keep_folder` kept; say whether there is one."""
    kept = user_cache_folder(kind, folder.name)

    def copy(made: Path) -> None:
        shutil.copytree(kept, made, dirs_exist_ok=True)
        if not is_intact(made):
            raise OSError(f"{kept} is damaged")

    try:
        make_once(folder, copy)
    except (OSError, shutil.Error) as error:
        if kept.exists():
            _log.warning("%s can't be read, and is made again: %s", kept, error)
        return False
    with suppress(OSError):
        os.utime(kept)
    return True


def keep_folder(kind: str, folder: Path) -> None:
    """Keep a copy of a folder of `make_once`, in place of the one that was not restored for longest.

    If that fails, a warning is logged.
    """
    kept = user_cache_folder(kind, folder.name)

    def copy(made: Path) -> None:
        shutil.copytree(folder, made, dirs_exist_ok=True)

    try:
        make_once(kept, copy)
        others = sorted(kept.parent.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    except (OSError, shutil.Error) as error:
        _log.warning("%s is not kept for the next start: %s", kept, error)
        return
    for old in others[_MOST_FOLDERS:]:
        shutil.rmtree(old, ignore_errors=True)
