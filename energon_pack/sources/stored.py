"""An object of a store as a file of a source, and which objects an entry of `source.path` stands for."""

import re
from collections.abc import Collection, Sequence
from itertools import chain
from pathlib import PurePosixPath

from energon_pack.errors import PackError
from energon_pack.run import stores
from energon_pack.run.stores import Found
from energon_pack.run.stores.blocks import BLOCK, BLOCKS, key_of

_MOST_BLOCKS = 8  # of one request
_GAP = 128 << 10  # bytes between two ranges that are read with them: a request costs more
_MAGIC = re.compile(r"[*?\[]")


class Blockwise:
    """Reads an object by place, in blocks that are kept; in order, several at a time."""

    def __init__(self, address: str, size: int, version: str):
        self._address, self._size, self._version = address, size, version
        self._key = key_of(address, version)
        self._next = -1  # the block after the last that was fetched
        self._ahead = 1  # blocks of the next request, where it is for that one
        self._ranges: dict[int, bytes] = {}  # read at once, by their offsets

    def read(self, offset: int, size: int) -> bytes:
        """The `size` bytes from `offset` on; fewer where the end is before that.

        Raises:
            StoreError: the object can't be read, or is another by now.
        """
        end = min(offset + size, self._size)
        for start, data in self._ranges.items():
            if start <= offset and end <= start + len(data):
                return data[offset - start : end - start]
        pieces = []
        for number in range(offset // BLOCK, -(-end // BLOCK)):
            here = max(0, offset - number * BLOCK), min(BLOCK, end - number * BLOCK)
            kept = BLOCKS.read(self._key, number, *here)
            pieces.append(bytes(self._fetch(number, -(-end // BLOCK))[slice(*here)]) if kept is None else kept)
        return b"".join(pieces) if len(pieces) != 1 else pieces[0]

    def read_ahead(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Read what will be asked for next: ranges of which nothing is kept, in few requests and no byte beside them.

        Args:
            ranges: offsets, and how many bytes each.
        """
        wanted: list[tuple[int, int]] = []
        for offset, size in sorted(ranges):
            end = min(offset + size, self._size)
            if size > _MOST_BLOCKS * BLOCK:  # it is copied in pieces, block by block
                continue
            if all(BLOCKS.has(self._key, number) for number in range(offset // BLOCK, -(-end // BLOCK))):
                continue
            if wanted and offset - wanted[-1][1] <= _GAP:
                wanted[-1] = wanted[-1][0], max(end, wanted[-1][1])
            else:
                wanted.append((offset, end))
        found = stores.read_ranges(self._address, wanted)
        self._ranges = {start: data for (start, _), data in zip(wanted, found, strict=True)}

    def _fetch(self, number: int, before: int) -> memoryview:
        """A block, and those after it that are read next: of what is asked for, or of an object that is read in order.

        Args:
            before: the block after the last that is asked for.
        """
        self._ahead = min(2 * self._ahead, _MOST_BLOCKS) if number == self._next else 1
        last = min(number + max(self._ahead, min(before - number, _MOST_BLOCKS)), -(-self._size // BLOCK))
        end = next((n for n in range(number + 1, last) if BLOCKS.has(self._key, n)), last)
        data, version = stores.read(self._address, number * BLOCK, min(end * BLOCK, self._size))
        if version not in (None, self._version):
            raise PackError(f"{self._address} changed while it was read: run again, it is then measured anew")
        self._next = end
        for n in range(number, end):
            BLOCKS.keep(self._key, n, data[(n - number) * BLOCK : (n - number + 1) * BLOCK])
        return data[:BLOCK]


#: What listing a folder said of its objects, until they are asked for: a source is not asked twice for each.
_LISTED: dict[str, Found] = {}
_FOLDERS: dict[str, dict[str, Found]] = {}


def state_of(address: str) -> Found:
    """Size and version of an object; of one that was just listed, as it was then."""
    return _LISTED.pop(address, None) or stores.find(address)


def expand(entry: str) -> tuple[str, list[str], list[str]]:
    """As `storage.expand`, of an address."""
    entry = stores.tidy(entry)
    if _MAGIC.search(entry):
        fixed = stores.parent(_MAGIC.split(entry, maxsplit=1)[0] + "x")
        pattern = re.compile(_as_regex(entry))
        found = stores.entries(fixed)
        _LISTED.update(found)
        folders = {above for address in found for above in _above(address, fixed) if pattern.fullmatch(above)}
        return fixed, sorted(folders), [address for address in found if pattern.fullmatch(address)]
    try:
        stores.find(entry)
        return stores.parent(entry), [], [entry]
    except FileNotFoundError:
        _FOLDERS[entry] = stores.entries(entry)
        if not _FOLDERS[entry]:
            raise PackError(f"source.path={entry}: no such folder or object") from None
        return entry, [entry], []


def walk(folder: str, pattern: re.Pattern[str]) -> list[str]:
    """As `storage.walk`, of an address."""
    found = _FOLDERS.pop(folder, None) or stores.entries(folder)
    _LISTED.update(found)
    names = {address: address[len(folder) + 1 :] for address in found}
    return [
        address
        for address, name in names.items()
        if pattern.search(name) and not any(part.startswith(".") for part in name.split("/"))
    ]


def files_in(folder: str, below: Collection[str]) -> dict[str, Found | None]:
    """As `storage.files_in`, of an address; an object that stands for a folder, as a console makes it, is no file."""
    objects = {address[len(folder) + 1 :]: found for address, found in stores.entries(folder).items()}
    around = {name: [above.as_posix() for above in PurePosixPath(name).parents][:-1] for name in objects}
    folders = set(chain.from_iterable(around.values()))
    found: dict[str, Found | None] = {}
    for name, state in objects.items():
        closed = next((above for above in reversed(around[name]) if above not in below), None)
        if closed is not None:
            found[f"{closed}/"] = None
        elif name not in folders:
            found[name] = state
    return found


def _above(address: str, fixed: str) -> list[str]:
    """The folders that an object lies in, below one."""
    folders = []
    while len(address := stores.parent(address)) > len(fixed):
        folders.append(address)
    return folders


def _as_class(matched: re.Match[str]) -> str:
    """Characters in brackets, their hyphens not escaped."""
    return f"[{'^' * bool(matched[1])}{matched[2]}]".replace(r"\-", "-")


def _as_regex(pattern: str) -> str:
    """A glob as `glob` reads it: `*` is within a name, `**` is any folders, and neither is a hidden one."""
    parts = []
    for part in pattern.split("/"):
        if part == "**":
            parts.append(r"(?:[^./][^/]*/)*")
            continue
        text = re.sub(r"\\\[(!|\\\^)?(.*?)\\\]", _as_class, re.escape(part))
        text = text.replace(r"\*", "[^/]*").replace(r"\?", "[^/]")
        parts.append((r"(?!\.)" if part[:1] in ("*", "?", "[") else "") + text + "/")
    return "".join(parts).removesuffix("/")
