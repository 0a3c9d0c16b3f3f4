"""Keep facts about a package's version, and folders that took long to make, in the user's cache for the next start."""

import importlib.metadata
import json
import logging
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from energon_pack.run.files import is_intact, made_whole, write_whole

_log = logging.getLogger(__name__)

Value = TypeVar("Value")


def read_kept(kind: str, key: str, parse: Callable[[Any], Value]) -> Value | None:
    """Read a value that `write_kept` wrote; None if there is none, or it can't be read.

    Args:
        kind: the cache's folder of such values.
        parse: makes the value from JSON; raises ValueError, TypeError or KeyError if the JSON has another form.
    """
    path = _path(kind, key)
    try:
        return parse(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        _log.warning("%s can't be read, and is made again: %s", path, error)
        return None


def write_kept(kind: str, key: str, value: Any) -> None:
    """Write a value as JSON for `read_kept` of later processes; if that fails, a warning is logged."""
    path = _path(kind, key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(value, indent=1).encode(), sync=False)
    except OSError as error:
        _log.warning("%s is not kept for the next start: %s", path, error)


@cache
def version_of(package: str) -> str | None:
    """Return the installed version of a package; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def user_cache_folder(kind: str, name: str) -> Path:
    """Return the path of a folder in the user's cache; the folder may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "energon_pack" / kind / name


def _path(kind: str, key: str) -> Path:
    return user_cache_folder(kind, f"{key}.json")


#: folders of a kind that are kept: a template with a large tokenizer takes 10 to 30 MB
_MOST_FOLDERS = 8


def restore_kept_folder(kind: str, folder: Path) -> bool:
    """Make a folder like the one of its name that `keep_folder` kept; say whether there is one."""
    kept = user_cache_folder(kind, folder.name)
    try:
        if not is_intact(folder):
            with made_whole(folder) as made:
                shutil.copytree(kept, made, dirs_exist_ok=True)
                if not is_intact(made):
                    raise OSError(f"{kept} is damaged")
    except (OSError, shutil.Error) as error:
        if kept.exists():
            _log.warning("%s can't be read, and is made again: %s", kept, error)
        return False
    with suppress(OSError):
        os.utime(kept)
    return True


def keep_folder(kind: str, folder: Path) -> None:
    """Keep a copy of a folder of `made_whole`, in place of the one that was not restored for longest.

    If that fails, a warning is logged.
    """
    kept = user_cache_folder(kind, folder.name)
    try:
        if not is_intact(kept):
            with made_whole(kept) as made:
                shutil.copytree(folder, made, dirs_exist_ok=True)
        others = sorted(kept.parent.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    except (OSError, shutil.Error) as error:
        _log.warning("%s is not kept for the next start: %s", kept, error)
        return
    for old in others[_MOST_FOLDERS:]:
        shutil.rmtree(old, ignore_errors=True)
