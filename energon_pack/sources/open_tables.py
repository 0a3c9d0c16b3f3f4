"""Keep tables open by their paths, and make one error of all ways in which a file is no table."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa

from energon_pack.errors import PackError, format_bytes, one_line
from energon_pack.run.bounded_memory import LruCache
from energon_pack.run.untrusted_input import BoundExceeded
from energon_pack.samples.skip import Reason, Skip
from energon_pack.sources.storage import File, open_file, state_of

T = TypeVar("T")
#: path and version of a table, and number of a group
GroupKey = tuple[str, str, int]


class GroupedTable(Protocol):
    """A table whose rows are read in groups."""

    @property
    def group_starts(self) -> Sequence[int]:
        """Return the number, in the file, of each group's first row, and at the end the number of all rows."""


G = TypeVar("G", bound=GroupedTable)


class OpenTableCache(Generic[T]):
    """Tables of one kind that are open, each with its file.

    Args:
        read: makes a table of the path and the open file.
        most: the largest sum of the sizes of open tables.
        size_of: returns the size of a table; None: each has size 1.
    """

    def __init__(self, read: Callable[[str, File], T], most: int = 128, size_of: Callable[[T], int] | None = None):
        self._read, sizes = read, size_of or (lambda _: 1)
        self._open: LruCache[str, tuple[File, T]] = LruCache(
            most, lambda opened: sizes(opened[1]), lambda opened: opened[0].close()
        )

    def get(self, path: str, version: str | None = None) -> tuple[File, T]:
        """Return the file and the table of a path, opened anew if the version differs.

        `version`: None: the present one; FileNotFoundError: there is no such file.
        """
        opened = self._open.get(path)
        if opened is None or opened[0].version != (version or _present_version(path, opened[0])):
            self._open.drop(path)
            file = open_file(path)
            try:
                if version not in (None, file.version):
                    raise PackError(f"{path} changed since it was indexed: run again")
                opened = self._open.put(path, (file, self._read(path, file)))
            except BaseException:
                file.close()
                raise
        return opened


def _present_version(path: str, file: File) -> str:
    """Return the version of a file as it is now; requests for an object name the version that was opened."""
    state = state_of(path) if file.fd is not None else file
    if state is None:
        raise FileNotFoundError(path)
    return state.version


#: path and version of a table, and number of a row in it → the row's JSON; so few that the row before is there only if
#: rows are read in order
_kept_rows: LruCache[tuple[str, str, int], bytes] = LruCache(4 << 20, len)
_ROWS_AT_ONCE = 16


def cached_row_json(path: str, version: str, number: int, rows_from: Callable[[int], list[bytes]]) -> bytes:
    """Return the JSON of a row; if rows are read in order, those after it are made with it, which costs less.

    `rows_from`: returns the JSON of that row and of those after it, as many as it is told, or fewer.

    Raises:
        BoundExceeded: the row alone takes too much memory. Others as `rows_from`.
    """
    row = _kept_rows.get((path, version, number))
    if row is None:
        is_in_order = _kept_rows.get((path, version, number - 1)) is not None
        try:
            rows = rows_from(_ROWS_AT_ONCE if is_in_order else 1)
        except (BoundExceeded, pa.ArrowException, ValueError, ArithmeticError):  # of a row after it, maybe
            rows = rows_from(1)
        for index, each in enumerate(rows):
            _kept_rows.put((path, version, number + index), each)
        row = rows[0]
    return row


def find_group_of_row(tables: OpenTableCache[G], path: str, version: str, row_number: int) -> tuple[G, GroupKey, int]:
    """Return the table, the group that a row of the file is in, and the row's number there; KeyError: there is none."""
    _, table = tables.get(path, version)
    group = bisect_right(table.group_starts, row_number) - 1
    if not 0 <= group < len(table.group_starts) - 1:
        raise KeyError(f"no row {row_number}")
    return table, (path, version, group), row_number - table.group_starts[group]


def split_cell_key(key: str) -> tuple[int, list[str]]:
    """Return the number of the row that the key of a cell begins with, and the keys to the cell in it; or KeyError."""
    number, *way = key.split("/")
    if not number.isdecimal():
        raise KeyError(key)
    return int(number), way


def cell_item(rows: pa.Table | pa.RecordBatch, row: int, value: Any, step: str) -> Any:
    """Return the cell of a row in the column `step`, or if `value` is in a cell, what `step` names in it."""
    if value is None:
        return rows.column(step)[row]
    return value[int(step) if isinstance(value, pa.ListScalar | pa.LargeListScalar | pa.FixedSizeListScalar) else step]


@contextmanager
def turn_errors_into_row_skip(row_number: int) -> Iterator[None]:
    """Turn an error in the block into a Skip that says that a row can't be read; a PackError ends the run."""
    try:
        yield
    except PackError:
        raise
    except (pa.ArrowException, BoundExceeded, OSError, LookupError, ValueError, ArithmeticError) as error:
        raise Skip(Reason.INVALID_JSON, f"row {row_number} can't be read: {one_line(error)}") from None


@contextmanager
def turn_errors_into_pack_error(path: str, format_name: str) -> Iterator[None]:
    """Turn an error in the block into a PackError that says that `path` is no whole file of this kind."""
    try:
        yield
    except BoundExceeded as error:
        state = state_of(path)
        has = "" if state is None else f", and has {format_bytes(state.size)}"
        raise PackError(f"{path} can't be read: {error}{has}") from None
    except PackError:
        raise
    except (pa.ArrowException, ValueError, LookupError, OSError) as error:
        if isinstance(error, OSError) and error.strerror:
            raise PackError(f"{path}: {error.strerror}") from None
        raise PackError(
            f"{path} is no whole {format_name} file: {one_line(error)}; get it again, or name the others by a glob"
        ) from None
