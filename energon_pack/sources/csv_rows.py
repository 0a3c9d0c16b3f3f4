"""Read a CSV or TSV, also compressed by gzip, as a table of texts. Rows that can't be read are named.

A row of marks is put behind the file. If it does not come out as the last row, the file ends within quotation marks.
"""

import codecs
import io
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.csv

from energon_pack.samples.bytes import as_file
from energon_pack.sources.batches import read_all
from energon_pack.sources.file_kinds import kind_of_table
from energon_pack.sources.storage import File

_BUFFER = 1 << 20
_MARK = b"\x1aend\x1a"


class CsvRows(NamedTuple):
    table: pa.Table
    bad: list[str]  # why rows can't be read
    damage: list[tuple[int, str]]  # offset and description


class _Marked(io.RawIOBase):
    """A stream with a row of marks behind it; it remembers how the stream itself ended."""

    def __init__(self, stream: Any, row: bytes):
        self._stream, self._behind = stream, b"\n" + row + b"\n"
        self.size, self.last, self.nul, self.has_crlf = 0, b"", -1, False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def]
        if data := self._stream.read(len(buffer)):
            self._look(data)
        else:
            data, self._behind = self._behind[: len(buffer)], self._behind[len(buffer) :]
        buffer[: len(data)] = data
        return len(data)

    def _look(self, data: bytes) -> None:
        if self.nul < 0 and (nul := data.find(b"\0")) >= 0:
            self.nul = self.size + nul
        self.has_crlf |= b"\r\n" in data
        self.size, self.last = self.size + len(data), (self.last + data[-4:])[-4:]


def read_csv(path: str, file: File) -> CsvRows:
    """Read a file; its header names the columns.

    Raises:
        ArrowException, OSError, ValueError: it has no header, or is no whole gzip.
        Unbounded: it takes more memory than its bytes can need.
    """
    mark = "\t" if kind_of_table(path) == ".tsv" else ","
    how: dict[str, Any] = {"delimiter": mark, "newlines_in_values": True}
    reading = pa.csv.ReadOptions(use_threads=False)
    skipping = pa.csv.ParseOptions(**how, invalid_row_handler=lambda row: "skip")
    with pa.csv.open_csv(_text(path, file), reading, skipping) as head:
        names = head.schema.names
    bad, last_short = list[str](), 0

    def leave_out(row: Any) -> str:
        nonlocal last_short
        text = row.text.partition(f"\n{_MARK.decode()}")[0]
        bad.append(f"{row.actual_columns} columns, not {row.expected_columns}: {text[:80]!r}")
        last_short = row.number if row.actual_columns < row.expected_columns else last_short
        return "skip"

    stream = _Marked(_text(path, file), mark.encode().join([_MARK] * len(names)))
    as_bytes = pa.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.binary()))  # an answer "007" is no number
    parsing = pa.csv.ParseOptions(**how, invalid_row_handler=leave_out)
    with pa.csv.open_csv(io.BufferedReader(stream, _BUFFER), reading, parsing, as_bytes) as rows:
        table = read_all(rows, rows.schema, file.size)
    is_last_short = last_short == len(table) + len(bad)  # the header has number 1, the marks come last
    table, is_closed = _without_marks(table, bad)
    damage = [(stream.size, what) for what in _damage(stream, is_closed, is_last_short)]
    return CsvRows(_in_utf8(table, bad, stream.nul >= 0), bad, damage[:1])


def _without_marks(table: pa.Table, bad: list[str]) -> tuple[pa.Table, bool]:
    """Leave out the row of marks; if it is inside the last cell, the last row, which is added to `bad`.

    Returns:
        The table, and whether there is a row of marks.
    """
    last = [value or b"" for row in table.slice(max(0, len(table) - 1)).to_pylist() for value in row.values()]
    has_marks, is_closed = any(_MARK in value for value in last), set(last) == {_MARK}
    if has_marks and not is_closed:
        bad.append(f"quotation marks that are not closed: {last[-1][:80]!r}")
    return table.slice(0, len(table) - has_marks), is_closed


def _text(path: str, file: File) -> Any:
    raw = as_file(file, _BUFFER)
    return pa.CompressedInputStream(pa.PythonFile(raw, "r"), "gzip") if path.lower().endswith(".gz") else raw


def _damage(stream: _Marked, is_closed: bool, is_last_short: bool) -> Iterator[str]:
    """Tell how the file was cut; at a row's end, or in a last cell without quotation marks, it does not show."""
    if stream.nul >= 0:
        yield "NUL bytes in place of text, as a copy leaves them that was not finished"
    if not is_closed:
        yield "it breaks off within quotation marks"
    if codecs.utf_8_decode(stream.last, "ignore", False)[1] < len(stream.last):
        yield "it breaks off within a character"
    if is_last_short and not stream.last.endswith((b"\n", b"\r")):
        yield "it breaks off within a row"
    if stream.has_crlf and stream.last.endswith(b"\r"):
        yield "it breaks off between CR and LF"


def _in_utf8(table: pa.Table, bad: list[str], has_nul: bool) -> pa.Table:
    """Decode bytes to texts; rows that are no text are left out, and added to `bad`."""
    schema = pa.schema([(name, pa.string()) for name in table.column_names])
    try:
        if not has_nul:
            return table.cast(schema)
    except pa.ArrowInvalid:
        pass
    is_text = [all(map(_is_text, row.values())) for row in table.to_pylist()]
    bad += [f"row {number} is not UTF-8" for number, is_whole in enumerate(is_text) if not is_whole]
    return table.filter(pa.array(is_text)).cast(schema)


def _is_text(value: bytes | None) -> bool:
    try:
        return "\0" not in (value or b"").decode()
    except UnicodeDecodeError:
        return False
