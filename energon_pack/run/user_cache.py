"""What is true of a version of a package and not of a dataset: kept for the next start, in the user's cache."""

import importlib.metadata
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from energon_pack.run.files import write_whole

_log = logging.getLogger(__name__)

Kept = TypeVar("Kept")


def read_kept(kind: str, key: str, parse: Callable[[Any], Kept]) -> Kept | None:
    """What was kept under a key; None: nothing, or nothing that can be read.

    Args:
        parse: from JSON; ValueError, TypeError or KeyError where it is of another form.
    """
    path = _path(kind, key)
    try:
        return parse(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        _log.warning("%s can't be read, and is made again: %s", path, error)
        return None


def keep(kind: str, key: str, value: Any) -> None:
    """Write JSON for the next start; a cache that can't be written costs time alone."""
    path = _path(kind, key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(value, indent=1).encode(), sync=False)
    except OSError as error:
        _log.warning("%s is not kept for the next start: %s", path, error)


def version_of(package: str) -> str | None:
    """The version of a package, of which most of what is kept is true; None: it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def user_folder(kind: str, name: str) -> Path:
    """A folder in the user's cache, which may not be there yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "energon_pack" / kind / name


def _path(kind: str, key: str) -> Path:
    return user_folder(kind, f"{key}.json")
