"""List the objects on a store that an entry of `source.path` stands for, and read their bytes in blocks.

Blocks serve a reader that reads in order. A reader that knows its next ranges, in any order, lets them be read ahead,
in large requests, 16 at a time. If two ranges lie close together, the bytes between them are read, too.
"""

import os
import re
import tempfile
import weakref
from bisect import bisect_right
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import PurePosixPath
from shutil import disk_usage
from typing import NamedTuple

from energon_pack.errors import PackError
from energon_pack.run import stores
from energon_pack.run.address import parent, tidy_address
from energon_pack.run.stores.blocks import BLOCK_BYTES, BLOCKS, blocks_key
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


def list_folder(folder: str, subfolders: Collection[str]) -> dict[str, SizeAndVersion | None]:
    """List a folder on a store as `storage.list_folder`; an object that only stands for a subfolder is left out."""
    objects = {address[len(folder) + 1 :]: states for address, states in stores.list_recursively(folder).items()}
    around = {name: [above.as_posix() for above in PurePosixPath(name).parents][:-1] for name in objects}
    folders = set(chain.from_iterable(around.values()))
    states: dict[str, SizeAndVersion | None] = {}
    for name, state in objects.items():
        closed = next((above for above in reversed(around[name]) if above not in subfolders), None)
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


_MAX_REQUEST_BLOCKS = 8  # blocks in one request
_MAX_JOINED_GAP_BYTES = 128 << 10  # bytes between two ranges that are read with them: a request costs more
_MAX_BYTES = 4 << 20  # bytes of the largest request ahead
_NUM_PARALLEL_REQUESTS = 16  # requests at a time: a store is slow to answer each
_MAX_MEMORY_BYTES = 32 << 20  # bytes read ahead that are held in memory; more lie in a file
_FREE_DISK_DIVISOR = 8  # a process takes this fraction (one in so many) of the free disk space


class BlockwiseReader:
    """Reads byte ranges of an object on a store, in blocks that this machine's cache keeps, or requested in advance."""

    def __init__(self, address: str, size: int, version: str):
        self._address, self._size, self._version = address, size, version
        self._key = blocks_key(address, version)
        self._next = -1  # the block after the last that was fetched
        self._in_order = 1  # blocks of the next request, if it begins at that block
        self._starts: list[int] = []  # starts of the ranges that were read ahead, ascending
        self._ranges_ahead: list[tuple[int, _ReadAheadSpool, int]] = []  # for each range, its end and its place

    def read(self, offset: int, size: int) -> bytes:
        """Read the `size` bytes from `offset` on; fewer if the object ends before that."""
        end = min(offset + size, self._size)
        pieces = []
        while offset < end:
            pieces.append(self._read_from_spool(offset, end) or self._read_block(offset, end))
            offset += len(pieces[-1])
        return b"".join(pieces) if len(pieces) != 1 else pieces[0]

    def _read_from_spool(self, offset: int, end: int) -> bytes:
        """Return the bytes from `offset` on that were read ahead, up to `end`; b"" if the first of them was not."""
        number = bisect_right(self._starts, offset) - 1
        if number < 0 or offset >= self._ranges_ahead[number][0]:
            return b""
        its_end, spool, place = self._ranges_ahead[number]
        return spool.read(place + offset - self._starts[number], min(end, its_end) - offset)

    def _read_block(self, offset: int, end: int) -> bytes:
        """Return the bytes from `offset` on, up to `end` or to the end of their block, whichever comes first."""
        number, start = divmod(offset, BLOCK_BYTES)
        here = slice(start, min(BLOCK_BYTES, end - number * BLOCK_BYTES))
        kept = BLOCKS.read_if_cached(self._key, number, here.start, here.stop) or b""
        is_whole = len(kept) == here.stop - here.start  # false if the machine went down while writing it
        return kept if is_whole else bytes(self._fetch(number, -(-end // BLOCK_BYTES))[here])

    def _fetch(self, number: int, before: int) -> memoryview:
        """Fetch block `number` and return its bytes; fetch blocks after it, too, if they are needed or likely to be.

        `before`: one more than the number of the last block that the caller needs.
        """
        self._in_order = min(2 * self._in_order, _MAX_REQUEST_BLOCKS) if number == self._next else 1
        last = min(
            number + max(self._in_order, min(before - number, _MAX_REQUEST_BLOCKS)), -(-self._size // BLOCK_BYTES)
        )
        end = next((n for n in range(number + 1, last) if BLOCKS.has(self._key, n)), last)
        data = self.get(number * BLOCK_BYTES, min(end * BLOCK_BYTES, self._size))
        self._next = end
        for n in range(number, end):
            BLOCKS.keep(self._key, n, data[(n - number) * BLOCK_BYTES : (n - number + 1) * BLOCK_BYTES])
        return data[:BLOCK_BYTES]

    def get(self, start: int, end: int) -> memoryview:
        """Request the bytes from `start` up to `end` from the store; raises PackError if the object has changed."""
        try:
            data, version = stores.read(self._address, start, end)
        except FileNotFoundError:
            data, version = memoryview(b""), ""
        if version not in (None, self._version) or len(data) < end - start:
            raise PackError(f"{self._address} changed while it was read: run again, it is then measured anew")
        return data

    def missing_requests(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the requests that fetch ranges, as (start, end) offsets; ranges whose blocks are all cached need none.

        `ranges`: (offset, size) of each, in bytes.
        """
        runs: list[tuple[int, int]] = []
        for offset, size in sorted(ranges):
            end = min(offset + size, self._size)
            if all(BLOCKS.has(self._key, number) for number in range(offset // BLOCK_BYTES, -(-end // BLOCK_BYTES))):
                continue
            if runs and offset - runs[-1][1] <= _MAX_JOINED_GAP_BYTES:
                runs[-1] = runs[-1][0], max(end, runs[-1][1])
            else:
                runs.append((offset, end))
        return [(first, min(first + _MAX_BYTES, end)) for start, end in runs for first in range(start, end, _MAX_BYTES)]

    def use_spool(self, spool: "_ReadAheadSpool", fetched: Sequence["_ReadAheadRequest"]) -> None:
        """Make `read` return the bytes of these requests from the spool that holds them."""
        self._starts = [one.start for one in fetched]
        self._ranges_ahead = [(one.end, spool, one.spool_offset) for one in fetched]

    def drop_bytes_ahead(self) -> None:
        """Drop the bytes that were read ahead."""
        self._starts, self._ranges_ahead = [], []

    def make_client(self) -> None:
        """Create the store's client now, because threads that start later would each create their own."""
        stores.ensure_client(self._address)


class _ReadAheadSpool:
    """Bytes that were read ahead: in memory, and the rest, if there is room, in a file without a name."""

    def __init__(self, size: int):
        self._memory, self._fd = memoryview(bytearray(min(size, _MAX_MEMORY_BYTES))), -1
        self._is_full = False
        if size > _MAX_MEMORY_BYTES:
            try:
                self._fd, path = tempfile.mkstemp(prefix="energon_pack-")
            except OSError:
                self._is_full = True
                return
            os.unlink(path)
            weakref.finalize(self, os.close, self._fd)

    def has_room(self, place: int) -> bool:
        """Tell whether the offset `place` may be written: in memory always, in the file until the disk was full."""
        return place < len(self._memory) or not self._is_full

    def write(self, place: int, data: memoryview) -> bool:
        """Write bytes at the offset `place`; return whether there was room for all of them."""
        here = data[: max(0, len(self._memory) - place)]
        self._memory[place : place + len(here)] = here
        data, place = data[len(here) :], place + len(here)
        try:
            while data:
                num_written = os.pwrite(self._fd, data, place)
                data, place = data[num_written:], place + num_written
        except OSError:  # the disk is full: bytes that are not kept are read again
            self._is_full = True
        return not data

    def read(self, place: int, size: int) -> bytes:
        """Return up to `size` bytes from the offset `place` on."""
        return bytes(self._memory[place : place + size]) or os.pread(self._fd, size, place)


class _ReadAheadRequest(NamedTuple):
    """The bytes of an object from `start` up to `end`, which one request reads ahead."""

    start: int
    end: int
    spool_offset: int  # offset of its bytes in the spool


def max_read_ahead_bytes() -> int:
    """Return how many bytes a process may read ahead: 32 MiB, or an eighth of the free disk space if that is more."""
    return max(_MAX_MEMORY_BYTES, disk_usage(tempfile.gettempdir()).free // _FREE_DISK_DIVISOR)


def read_ahead(ranges_by_object: Sequence[tuple[BlockwiseReader, Sequence[tuple[int, int]]]]) -> None:
    """Request byte ranges of objects, 16 requests at a time, before they are read; drop ranges of an earlier call.

    `ranges_by_object`: each object with its ranges, as (offset, size) in bytes.
    """
    fetched: list[tuple[BlockwiseReader, list[_ReadAheadRequest]]] = []
    size = 0
    for item, ranges in ranges_by_object:
        item.drop_bytes_ahead()
        fetched.append((item, []))
        for start, end in item.missing_requests(ranges):
            fetched[-1][1].append(_ReadAheadRequest(start, end, size))
            size += end - start
    if not size:
        return
    spool = _ReadAheadSpool(size)

    def fetch(job: tuple[BlockwiseReader, _ReadAheadRequest]) -> bool:
        item, (start, end, place) = job
        return spool.has_room(place) and spool.write(place, item.get(start, end))

    jobs = [(item, one) for item, its in fetched for one in its]
    for item, _ in fetched:
        item.make_client()
    with ThreadPoolExecutor(_NUM_PARALLEL_REQUESTS) as pool:  # starts as many threads as there are jobs
        are_kept = iter([*pool.map(fetch, jobs)])  # after one fails, no other is begun
    for item, its in fetched:
        item.use_spool(spool, [one for one in its if next(are_kept)])
