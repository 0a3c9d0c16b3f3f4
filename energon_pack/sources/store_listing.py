"""List the objects on a store that an entry of `source.path` stands for."""

import re
from collections.abc import Collection
from itertools import chain
from pathlib import PurePosixPath

from energon_pack.errors import PackError
from energon_pack.run import stores
from energon_pack.run.address import parent, tidy_address
from energon_pack.run.stores.requests import SizeAndVersion

_GLOB_CHARACTER = re.compile(r"[*?\[]")


#: state of objects from listing their folder, until it is used: so no object is requested twice
_LISTED_OBJECTS: dict[str, SizeAndVersion] = {}
#: the folder that was expanded last; it is then searched for files of each form
_EXPANDED_FOLDER: dict[str, dict[str, SizeAndVersion]] = {}


def state_of(address: str) -> SizeAndVersion:
    """Return size and version of an object: from an earlier listing, if it was in one, else from the store."""
    return _LISTED_OBJECTS.pop(address, None) or stores.find(address)


def resolve_address(entry: str) -> tuple[str, list[str], list[str]]:
    """Resolve an address of a folder, an object or a glob, as `storage.resolve_source_entry` resolves paths."""
    entry = tidy_address(entry)
    if _GLOB_CHARACTER.search(entry):
        fixed = parent(_GLOB_CHARACTER.split(entry, maxsplit=1)[0] + "x")
        pattern = re.compile(_as_regex(entry))
        objects = stores.list_recursively(fixed)
        _LISTED_OBJECTS.update(objects)
        folders = {above for address in objects for above in _folders_above(address, fixed) if pattern.fullmatch(above)}
        return fixed, sorted(folders), [address for address in objects if pattern.fullmatch(address)]
    try:
        stores.find(entry)
        return parent(entry), [], [entry]
    except FileNotFoundError:
        _EXPANDED_FOLDER.clear()
        _EXPANDED_FOLDER[entry] = stores.list_recursively(entry)
        if not _EXPANDED_FOLDER[entry]:
            raise PackError(f"source.path={entry}: no such folder or object") from None
        return entry, [entry], []


def walk(folder: str, pattern: re.Pattern[str]) -> list[str]:
    """Return the addresses of objects below a folder whose names match; hidden ones (`.name`) are left out."""
    objects = _EXPANDED_FOLDER.get(folder) or stores.list_recursively(folder)
    _LISTED_OBJECTS.update(objects)
    names = {address: address[len(folder) + 1 :] for address in objects}
    return [
        address
        for address, name in names.items()
        if pattern.search(name) and not any(part.startswith(".") for part in name.split("/"))
    ]


def list_folder(folder: str, below: Collection[str]) -> dict[str, SizeAndVersion | None]:
    """List a folder on a store as `storage.list_folder`; an object that only stands for a subfolder is left out."""
    objects = {address[len(folder) + 1 :]: states for address, states in stores.list_recursively(folder).items()}
    around = {name: [above.as_posix() for above in PurePosixPath(name).parents][:-1] for name in objects}
    folders = set(chain.from_iterable(around.values()))
    states: dict[str, SizeAndVersion | None] = {}
    for name, state in objects.items():
        closed = next((above for above in reversed(around[name]) if above not in below), None)
        if closed is not None:
            states[f"{closed}/"] = None
        elif name not in folders:
            states[name] = state
    return states


def _folders_above(address: str, fixed: str) -> list[str]:
    """Return the folders that lie below `fixed` and contain the object `address`, the deepest first."""
    folders = []
    while len(address := parent(address)) > len(fixed):
        folders.append(address)
    return folders


def _as_regex_class(matched: re.Match[str]) -> str:
    """Turn a glob's `[…]`, escaped for a regex, into a regex class: `[!a\\-c]` becomes `[^a-c]`."""
    return f"[{'^' * bool(matched[1])}{matched[2]}]".replace(r"\-", "-")


def _as_regex(pattern: str) -> str:
    """Turn a glob into a regex: `*` matches within a name, `**` any folders, and neither matches hidden names."""
    parts = []
    for part in pattern.split("/"):
        if part == "**":
            parts.append(r"(?:[^./][^/]*/)*")
            continue
        text = re.sub(r"\\\[(!|\\\^)?(.*?)\\\]", _as_regex_class, re.escape(part))
        text = text.replace(r"\*", "[^/]*").replace(r"\?", "[^/]")
        parts.append((r"(?!\.)" if part[:1] in ("*", "?", "[") else "") + text + "/")
    return "".join(parts).removesuffix("/")
