"""Say where media lie that data name by the places of another machine, and why a medium is not there.

    /mnt/old/a.jpg ──source.media_map=["/mnt/old=/data"]──► /data/a.jpg

Packs, ledger and ids keep the names of the data: the same bytes at another place make the same packs.
"""

import os
import re
import shlex
import stat
from typing import Any

from energon_pack.errors import PackError
from energon_pack.run.address import bucket_of

#: beginnings of names, each with what stands in its place; the longest that fits is taken
MediaMap = tuple[tuple[str, str], ...]

#: OLD=NEW: folders may have a `=` in their names, so the first counts that a path from the root follows, if any does
_ENTRY = re.compile(r"(.+?)=(?:(?=[/~]|\w+://)|(?!.*=(?:[/~]|\w+://)))(.+)")
_WINDOWS_PATH = re.compile(r"[A-Za-z]:\\|\\\\|[^/\s]+\\[^\s]*\.\w{2,5}$")


def media_map_of(value: Any) -> MediaMap:
    """Read `source.media_map`, a list of `OLD=NEW`, or one of them; raises PackError if it is none."""
    entries = [*value] if isinstance(value, list | tuple) else [] if value is None else [value]
    pairs = [_ENTRY.fullmatch(entry) if isinstance(entry, str) else None for entry in entries]
    if wrong := next((entry for entry, pair in zip(entries, pairs, strict=True) if pair is None), None):
        raise PackError(f"source.media_map: {wrong!r} is not OLD=NEW, as in 'source.media_map=[\"/mnt/old=/data\"]'")
    spelled = ((_with_single_backslashes(pair[1]), os.path.expanduser(pair[2])) for pair in pairs if pair)
    return tuple(sorted(spelled, key=lambda pair: -len(pair[0])))


def _with_single_backslashes(path: str) -> str:
    """Return a path of Windows with one backslash between folders: a shell and Hydra leave two as they are."""
    return path[:2] + path[2:].replace("\\\\", "\\")


def mapped_name(name: str, media_map: MediaMap) -> str:
    """Return the name of a medium with its beginning mapped; after a Windows path, slashes are as they are here."""
    for old, new in media_map:
        rest = name.removeprefix(old)
        if name.startswith(old) and (not rest or old[-1] in "/\\" or rest[0] in "/\\"):
            rest = rest.replace("\\", "/") if "\\" in old or rest[:1] == "\\" else rest
            return f"{new.rstrip('/')}/{rest.lstrip('/')}" if rest else new
    return name


def mapped_buckets(media_map: MediaMap) -> set[str]:
    """Return the buckets that a map names: the user allows them."""
    return {bucket_of(new) for _, new in media_map}


def why_missing(name: str, path: str) -> str:
    """Say what is the matter with a medium that can't be opened, and what cures it. `path`: its place here."""
    if "\0" in name:
        return f"{name!r} has a zero byte, and no file has"
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        mode = 0
    if stat.S_ISDIR(mode):
        return f"{name!r} is a folder: the list of its files in its place is a video of these frames"
    if mode and not stat.S_ISREG(mode):
        return f"{name!r} is a pipe, a socket or a device: only files are read"
    if _WINDOWS_PATH.match(name):
        old = name.rpartition("\\")[0] or name
        return f"{name!r} is not there: a path of Windows ({map_advice(old)})"
    if name.startswith("/") or bucket_of(name):
        return f"{name!r} is not there: a path of another machine? ({map_advice(os.path.dirname(name))})"
    return f"{name!r} is not there (source.media_root)"


def map_advice(old: str) -> str:
    setting = f'source.media_map=["{old}=FOLDER"]'
    return f"{shlex.quote(setting)} says where it is here"


def absolute_mapped_places(media_map: MediaMap) -> list[str]:
    """Return the absolute paths and the addresses that a map names."""
    return [new for _, new in media_map if bucket_of(new) or os.path.isabs(new)]
