"""Read values of an LMDB page by page: liblmdb's mdb.c, data version 1 of 64 bits.

The library maps the file into memory and follows whatever a page says: a damaged page ends the process (SIGBUS,
SIGSEGV), or keeps it for ever. Here each page on the way to a value is read and checked, and there are no more of them
than the tree is deep.
"""

import os
import struct
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, NoReturn

from energon_pack.samples.skip import Reason, Skip
from energon_pack.sources.storage import File, open_file

_PAGE = struct.Struct("<QHHHH")  # number, padding, flags, end of the pointers to nodes, start of the nodes
_NODE = struct.Struct("<HHHH")  # size of the value, or number of a page; flags, or its highest part; size of the key
_META = struct.Struct("<II16xI48xHH24xQQQQ")  # the fields of `_Meta`
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_PAGE_SIZES = tuple(1 << power for power in range(8, 17))
_BRANCH, _LEAF, _OVERFLOW = 1, 2, 4  # kinds of pages
_IN_MEMORY = 0xC010  # flags of pages that mean nothing on disk
_LARGE, _SEVERAL = 1, 4  # flags of nodes: the value has pages of its own; the key has several values
_REVERSED, _INTEGERS = 2, 8  # flags of keys
_NO_PAGE = (1 << 64) - 1
_MAX_KEY_BYTES = 511
_MAX_DEPTH = 32  # of the library


class DamagedFile(Skip):
    """A file that holds media of many samples is damaged: `source.on_damaged` says whether the run goes on."""

    def __init__(self, path: str, name: str, defect: str):
        super().__init__(Reason.UNREADABLE_MEDIA, f"{name!r} {defect}")
        self.path, self.name, self.defect = path, name, defect

    def __reduce__(self) -> Any:
        return DamagedFile, (self.path, self.name, self.defect)


class _Meta(NamedTuple):
    """The fields of one of the two first pages that are read: of the file, then of the tree of keys."""

    magic: int
    version: int
    page_bytes: int
    flags: int
    depth: int
    num_keys: int
    root: int
    last_page: int
    transaction: int


class _NodeOutside(Exception):
    """Raised with the number of a page: a node does not lie in it."""


@dataclass(frozen=True)
class _Page:
    """A page of the tree: its bytes, where its nodes start, and the range of places where one can."""

    number: int
    data: bytes
    starts: Sequence[int]
    first: int
    last: int

    def key(self, place: int) -> bytes:
        """Return the key of a node."""
        start = self._start(place) + _NODE.size
        return self.data[start : start + (self.data[start - 2] | self.data[start - 1] << 8)]

    def node(self, place: int) -> tuple[int, int, int]:
        """Return the first 32 bits of a node, its next 16, and the offset of its value."""
        start = self._start(place)
        low, high, flags, key_bytes = _NODE.unpack_from(self.data, start)
        return low | high << 16, flags, start + _NODE.size + key_bytes

    def _start(self, place: int) -> int:
        start = self.starts[place]
        if not self.first <= start <= self.last:
            raise _NodeOutside(self.number)
        return start


def open_lmdb(file: str, path_in_errors: str) -> "Lmdb":
    """Open an LMDB. `file`: its file; `path_in_errors`: the same, or its folder, which errors name.

    Raises:
        DamagedFile: it is cut short, or its first pages are damaged.
        Skip: it is no LMDB, or one whose keys are in another order than that of their bytes.
    """
    opened = open_file(file)
    try:
        return Lmdb(opened, path_in_errors)
    except Skip:
        opened.close()
        raise


class Lmdb:
    """The values of an LMDB by their keys. `path`: what errors name. It raises what `open_lmdb` raises."""

    def __init__(self, file: File, path: str):
        self._file, self._path, self._name = file, path, os.path.basename(path)
        self._meta = meta = self._newest_meta()
        if file.size < (needed := (meta.last_page + 1) * meta.page_bytes):
            self._raise_damaged(f"is cut short: its pages need {needed:,} bytes, it has {file.size:,}")
        if meta.flags & (_REVERSED | _INTEGERS):
            raise Skip(Reason.UNSUPPORTED_MEDIA, f"the LMDB {self._name!r} has keys that are reversed, or integers")

    def close(self) -> None:
        self._file.close()

    def get(self, key: bytes) -> bytes:
        """Return the value of a key; raises KeyError: it is not there; DamagedFile; Skip: LMDB has no such key."""
        if not 0 < len(key) <= _MAX_KEY_BYTES:
            detail = f"a key has 1 to {_MAX_KEY_BYTES} bytes, and {key.decode()!r} {len(key)}"
            raise Skip(Reason.UNREADABLE_MEDIA, f"the LMDB {self._name!r}: {detail}")
        try:
            return self._find(key)
        except _NodeOutside as error:
            self._raise_damaged_page(error.args[0])

    def _find(self, key: bytes) -> bytes:
        way: list[tuple[_Page, int]] = []  # pages, and the place in each
        number = self._meta.root
        for depth in range(self._meta.depth if number != _NO_PAGE else 0, 0, -1):
            page = self._page(number, _BRANCH if depth > 1 else _LEAF)
            # the first key of a branch is not stored: it is less than all
            place = bisect_right(range(len(page.starts)), key, lo=int(depth > 1), key=page.key) - 1
            way.append((page, place))
            if depth > 1:
                low, high, _ = page.node(place)
                number = low | high << 32
            elif place >= 0 and page.key(place) == key:
                return self._value(page, place)
        self._refuse_disorder(way)
        raise KeyError(key)

    def _value(self, page: _Page, place: int) -> bytes:
        size, flags, start = page.node(place)
        if flags & _SEVERAL:
            raise Skip(Reason.UNSUPPORTED_MEDIA, f"the LMDB {self._name!r} has several values of a key")
        if not flags & _LARGE:
            if start + size > len(page.data):
                self._raise_damaged_page(page.number)
            return page.data[start : start + size]
        number = int.from_bytes(page.data[start : start + 8], "little")
        first = number * self._meta.page_bytes
        head = self._file.read(first, _PAGE.size) if number <= self._meta.last_page else b""
        its_number, _, kind, low, high = _PAGE.unpack(head) if len(head) == _PAGE.size else (-1, 0, 0, 0, 0)
        room = min(low | high << 16, self._meta.last_page + 1 - number) * self._meta.page_bytes - _PAGE.size
        if its_number != number or kind & ~_IN_MEMORY != _OVERFLOW or size > room:
            self._raise_damaged_page(number)
        value = self._file.read(first + _PAGE.size, size)
        return value if len(value) == size else self._raise_damaged_page(number)

    def _page(self, number: int, kind: int) -> _Page:
        """Read a page of the tree; raises DamagedFile if it is not of this number and kind."""
        size = self._meta.page_bytes
        data = self._file.read(number * size, size) if 1 < number <= self._meta.last_page else b""
        if len(data) < size:
            self._raise_damaged_page(number)
        its_number, _, its_kind, end, nodes = _PAGE.unpack_from(data)
        if its_number != number or its_kind & ~_IN_MEMORY != kind or not _PAGE.size < end <= nodes <= size:
            self._raise_damaged_page(number)
        starts = struct.unpack_from(f"<{(end - _PAGE.size) // 2}H", data, _PAGE.size)
        return _Page(number, data, starts, nodes, size - _NODE.size)

    def _refuse_disorder(self, way: Sequence[tuple[_Page, int]]) -> None:
        """Raise DamagedFile if the pages on the way to a key that is not there are in disorder: it may be there."""
        before: list[bytes] = []
        behind: list[bytes] = []
        for page, place in way:
            first = int((page, place) != way[-1])
            keys = [page.key(number) for number in range(first, len(page.starts))]
            if any(key > later for key, later in pairwise([*before, *keys, *behind])):
                self._raise_damaged_page(page.number)
            before = [page.key(place)] if place >= first else before
            behind = [page.key(place + 1)] if place + 1 < len(page.starts) else behind

    def _newest_meta(self) -> _Meta:
        """Return the newer of the two pages that say where the tree is."""
        first, *others = (self._meta_at(place) for place in (0, *_PAGE_SIZES))
        second = next((meta for meta, size in zip(others, _PAGE_SIZES, strict=True) if meta.page_bytes == size), first)
        if _MAGIC not in (first.magic, second.magic):
            raise Skip(Reason.UNREADABLE_MEDIA, f"{self._name!r} is no LMDB")
        newest = max(first, second, key=lambda meta: meta.transaction)
        if second is first or first[:3] != second[:3] or newest.depth > _MAX_DEPTH:
            self._raise_damaged_page(0)
        if newest.version != _VERSION:
            raise Skip(Reason.UNSUPPORTED_MEDIA, f"the LMDB {self._name!r} is of version {newest.version}")
        return newest

    def _meta_at(self, place: int) -> _Meta:
        data = self._file.read(place + _PAGE.size, _META.size)
        return _Meta(*_META.unpack(data.ljust(_META.size, b"\0")))

    def _raise_damaged_page(self, number: int) -> NoReturn:
        self._raise_damaged(f"is damaged in its page {number:,}")

    def _raise_damaged(self, defect: str) -> NoReturn:
        raise DamagedFile(self._path, self._name, f"{defect}; put a whole copy in its place")
