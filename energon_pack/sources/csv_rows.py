"""Read rows and cells of CSV and TSV: a record is found by the quotes before its end, and read by its place.

    a.csv ──Records──► offset and size of each record ──row_json──► {"image": "a.csv::17/image"} ──► the image

The first record names the columns. As in RFC 4180 a cell may stand in quotes, and then hold delimiters, ends of lines
and doubled quotes; a quote within any other cell is text. Blank lines are no records.
"""

import csv
import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from energon_pack.errors import PackError, format_bytes
from energon_pack.run.bounded_memory import LruCache
from energon_pack.run.files import digest_of_rest
from energon_pack.samples.bytes import as_file
from energon_pack.samples.skip import Reason, Skip
from energon_pack.sources.jsonl.line_index import BYTE_ORDER_MARK, NUL_DAMAGE, make_index_table
from energon_pack.sources.named_bytes import get_item_of_record, json_with_media_names, medium_at, parsed_base64_list
from energon_pack.sources.open_tables import OpenTableCache, split_cell_key, turn_errors_into_pack_error
from energon_pack.sources.other_formats import describe_foreign_format, open_refusing_compressed
from energon_pack.sources.storage import File, InMemoryFile

_BLOCK_BYTES = 4 << 20
_MAX_HEADER_BYTES = 1 << 20
_MAX_ROW_BYTES = 256 << 20
_QUOTE, _LF, _CR = b'"\n\r'
_CR_MARK = "\udc0d"  # no text has it, and to csv.reader it is no end
_CALLED = {",": ",", ";": ";", "\t": "tab"}  # what may separate cells, and its name
csv.field_size_limit(max(csv.field_size_limit(), _MAX_ROW_BYTES))  # it is 128 KiB by default

_RecordPlaces = tuple[np.ndarray, np.ndarray]  # offsets and sizes


class CsvRecordScanner:
    """The records of a file from `start` on.

    Args:
        delimiters: the bytes that may separate cells.
        ends_by_cr: whether CR without LF ends a record; else it is text, which pandas writes without quotes.
    """

    def __init__(self, file: File, start: int, delimiters: str, ends_by_cr: bool = True):
        self._file, self._start, self._ends_by_cr = file, start, ends_by_cr
        self._begins_cell = np.zeros(256, bool)
        self._begins_cell[[*delimiters.encode(), _LF, *([_CR] if ends_by_cr else ())]] = True
        #: whether the last record ends within quotes
        self.is_open = False
        #: offset of the first NUL byte
        self.nul: int | None = None
        #: offsets of quotes that end a cell, and that text follows
        self.wrong_ends: list[int] = []
        self._last = -2  # offset of the last quote that opened or closed a cell
        self._before = _LF  # the byte before the next block

    def places(self) -> Iterator[_RecordPlaces]:
        """Yield the places of records, block by block, without ends of lines; empty records have none."""
        start, offset, held = self._start, self._start, b""
        while data := self._file.read(offset, _BLOCK_BYTES):
            block, base = held + data, offset - len(held)
            offset += len(data)
            held = b"\r" if block.endswith(b"\r") and offset < self._file.size else b""  # LF may follow it
            block = block.removesuffix(held)
            if self.nul is None and (nul := block.find(b"\0")) >= 0:
                self.nul = base + nul
            if block:
                ends, sizes = self._ends(np.frombuffer(block, np.uint8), base)
                starts = np.concatenate([[start], ends + sizes])
                start = int(starts[-1])
                yield _without_empty_records(starts[:-1], ends - starts[:-1])
        yield _without_empty_records(np.array([start]), np.array([self._file.size - start]))

    def _ends(self, block: np.ndarray, base: int) -> _RecordPlaces:
        """Return the places of the ends of records in a block: LF, CR and LF, or CR, outside of quotes."""
        was_open = self.is_open
        quotes = self._quotes(block, base)
        ends = np.flatnonzero((block == _LF) | (block == _CR))
        marks = block[ends]
        is_pair = np.append((np.diff(ends) == 1) & (marks[:-1] == _CR) & (marks[1:] == _LF), False)[: len(ends)]
        is_end = (np.searchsorted(quotes, ends) + was_open) % 2 == 0
        is_end[1:] &= ~is_pair[:-1]
        is_end &= is_pair | (marks == _LF) | self._ends_by_cr
        self._before = int(block[-1])
        return base + ends[is_end], 1 + is_pair[is_end]

    def _quotes(self, block: np.ndarray, base: int) -> np.ndarray:
        """Return the offsets in a block of the quotes that open or close a cell; a doubled quote closes and opens."""
        quotes = np.flatnonzero(block == _QUOTE)
        if not len(quotes):
            self._note_wrong_closing_quotes(quotes, block, base)
            return quotes
        may_open = self._begins_cell[np.where(quotes > 0, block[quotes - 1], self._before)]
        is_doubled = np.diff(quotes, prepend=self._last - base) == 1
        is_closing = (np.arange(len(quotes)) + self.is_open) % 2 == 1
        if not np.all(is_closing | may_open | is_doubled):  # some are text
            quotes = np.array([*self._quotes_one_by_one(quotes, may_open, self._last - base)], np.int64)
        self._note_wrong_closing_quotes(quotes, block, base)
        if len(quotes):
            self._last = base + int(quotes[-1])
            self.is_open ^= len(quotes) % 2 == 1
        return quotes

    def _note_wrong_closing_quotes(self, quotes: np.ndarray, block: np.ndarray, base: int) -> None:
        """Note the quotes that close a cell, as far as the byte behind them is in the block."""
        ends = quotes[int(not self.is_open) :: 2]
        if not self.is_open and self._last == base - 1:
            ends = np.append(-1, ends)
        ends = ends[ends + 1 < len(block)]
        behind = block[ends + 1]
        self.wrong_ends += (base + ends[~self._begins_cell[behind] & (behind != _QUOTE) & (behind != _CR)]).tolist()

    def _quotes_one_by_one(self, quotes: np.ndarray, may_open: np.ndarray, last: int) -> Iterator[int]:
        is_open = self.is_open
        for place, may in zip(quotes.tolist(), may_open.tolist(), strict=True):
            if is_open or may or place == last + 1:
                is_open, last = not is_open, place
                yield place


def _without_empty_records(offsets: np.ndarray, sizes: np.ndarray) -> _RecordPlaces:
    return offsets[sizes > 0], sizes[sizes > 0]


@dataclass(frozen=True)
class CsvTable:
    """An open CSV or TSV. An empty one has no columns."""

    name: str
    delimiter: str
    columns: list[str]
    #: where the record behind the header begins
    start: int
    #: whether the header ends by CR without LF
    ends_by_cr: bool = False

    def records(self, file: File) -> CsvRecordScanner:
        """Return the records of the file behind the header."""
        return CsvRecordScanner(file, self.start, self.delimiter, self.ends_by_cr)

    def cells(self, record_bytes: bytes) -> dict[str, str | list[str]]:
        """Return the cells of a record that are not empty, by their columns; raises Skip if it is no such record.

        A cell that is a list of images in base64 is a list.
        """
        cells, names = _split(record_bytes, self.delimiter), self.columns
        if len(cells) < len(names) or any(cells[len(names) :]):
            named, shown = f"{len(names)} columns ({', '.join(names)[:80]})", ", ".join(cells)[:80]
            raise Skip(Reason.INVALID_JSON, f"{len(cells)} cells for {named}: {shown!r}")
        if cells == names:
            raise Skip(
                Reason.INVALID_JSON, f"it names the columns again, as in files that were joined: {record_bytes[:80]!r}"
            )
        called = zip(names, cells, strict=False)
        return {name: parsed_base64_list(cell) or cell for name, cell in called if name and cell}


def _split(raw: bytes, delimiter: str) -> list[str]:
    """Return the cells of a record; raises Skip if it is not UTF-8, or its quotes are not as they should be."""
    if b"\0" in raw:
        raise Skip(Reason.INVALID_JSON, NUL_DAMAGE)
    try:
        text = raw.decode().removesuffix("\r")
        row = next(csv.reader([text.replace("\r", _CR_MARK)], delimiter=delimiter, strict=True), [])
        return [cell.replace(_CR_MARK, "\r") for cell in row]
    except UnicodeDecodeError as error:
        around = raw[max(0, error.start - 20) : error.start + 9]
        detail = f"byte {raw[error.start]:#04x} is not UTF-8, in {around!r}: iconv -f LATIN1 -t UTF-8 may write it so"
    except csv.Error as error:
        detail = f"its quotes: {error}, in {text[:80]!r}"
    raise Skip(Reason.INVALID_JSON, detail)


def _read_table(path: str, file: File) -> CsvTable:
    head = file.read(0, _MAX_HEADER_BYTES)
    encoding = json.detect_encoding(head[:4])
    if other := describe_foreign_format(head):
        raise PackError(f"{path} is {other}")
    if not encoding.startswith("utf-8"):
        raise PackError(f"{path} is {encoding.upper()}, and tables are read in UTF-8: iconv writes them so")
    name, start = os.path.basename(path), len(BYTE_ORDER_MARK) if head.startswith(BYTE_ORDER_MARK) else 0
    usual = "\t" if name.lower().endswith("tsv") else ","
    records = CsvRecordScanner(InMemoryFile(head, ""), start, "".join(_CALLED))
    offsets, sizes = _all_places(records)
    if not len(offsets):
        return CsvTable(name, usual, [], file.size)
    end = int(offsets[0] + sizes[0])
    if end == len(head) and (records.is_open or end < file.size):
        raise ValueError(f"its first line, which names the columns, has no end: {head[start : start + 80]!r}")
    header = head[offsets[0] : end]
    delimiters = [each for each in _CALLED if each.encode() in header]
    delimiter = delimiters[0] if usual not in delimiters and len(delimiters) == 1 else usual
    try:
        columns = [column.strip() for column in _split(header, delimiter)]
    except Skip as skip:
        raise PackError(f"{path}: its first line, which names the columns: {skip.detail}") from None
    while columns and not columns[-1]:
        columns.pop()
    twice = next((column for column, number in Counter(columns).items() if number > 1), None)
    if not columns or twice is not None or "" in columns[1:]:  # the index of pandas comes first, and has no name
        why = f"has the name {twice!r} twice" if twice else "has a column without a name"
        raise PackError(
            f"{path}: its first line, which names the columns, {why}: {', '.join(columns)[:200]!r}: name each"
            " column once, as image,question,answer, in a line before it if it is a row, else in its place;"
            " source.columns.* takes other names"
        )
    return CsvTable(name, delimiter, columns, end, head[end : end + 1] == b"\r" and head[end + 1 : end + 2] != b"\n")


def _all_places(records: CsvRecordScanner) -> _RecordPlaces:
    offsets, sizes = zip(*records.places(), strict=True)
    return np.concatenate(offsets), np.concatenate(sizes)


_open_tables = OpenTableCache(_read_table)
#: path and version of a file → the places of its records
_kept_places: LruCache[tuple[str, str], _RecordPlaces] = LruCache(256 << 20, lambda places: 2 * places[0].nbytes)


def cached_csv_table(path: str) -> CsvTable:
    """Return the table of a CSV or TSV, opened if it was not; raises PackError if it can't be read as one."""
    with turn_errors_into_pack_error(path, "CSV"):
        return _open_tables.get(path)[1]


def delimiter_name(path: str) -> str:
    """Return what separates the cells of a CSV or TSV: `,`, `;`, `tab`; raises PackError as `cached_csv_table`."""
    return _CALLED[cached_csv_table(path).delimiter]


def index_csv(path: str) -> pa.Table:
    """Index a file: a row of `wds.INDEX_SCHEMA` for each record behind the header; its key is its number, from 0."""
    with open_refusing_compressed(path) as file:
        digest = digest_of_rest(as_file(file, _BLOCK_BYTES))
        table = cached_csv_table(path)
        records = table.records(file)
        offsets, sizes = _all_places(records)
        bad = _why_cut(file, table, records, offsets, sizes)
        lost = [*_lost_lines(file, table, records, offsets, sizes)]
    if not table.columns:
        offsets, sizes, bad = np.array([0]), np.array([file.size]), ["it is empty"]
    damage = lost if records.nul is None else [*lost, (records.nul, NUL_DAMAGE)]
    damage += [(int(offsets[-1]), detail) for detail in bad]
    return make_index_table(np.arange(len(offsets)), offsets, sizes, digest, bad, damage)


def _why_cut(
    file: File, table: CsvTable, records: CsvRecordScanner, offsets: np.ndarray, sizes: np.ndarray
) -> list[str]:
    """Return why the last record can't be read, if it is cut, or begins a cell in quotes that has no end."""
    if records.is_open:
        return [f"record {len(offsets) - 1} has a quote without an end, and all behind it is in this cell"]
    if not len(offsets) or (end := int(offsets[-1] + sizes[-1])) < file.size or sizes[-1] > _MAX_ROW_BYTES:
        return []
    cells = file.read(int(offsets[-1]), int(sizes[-1])).decode(errors="replace").count(table.delimiter) + 1
    few = cells < len(table.columns)
    return [f"it breaks off within record {len(offsets) - 1}, at byte {end:,}: {cells} cells"] if few else []


def _lost_lines(
    file: File, table: CsvTable, records: CsvRecordScanner, offsets: np.ndarray, sizes: np.ndarray
) -> Iterator[tuple[int, str]]:
    """Yield the damage of each record of several lines with a quote that ends a cell, and that text follows."""
    numbers = np.searchsorted(offsets, np.array(records.wrong_ends, np.int64), "right") - 1
    for number in np.unique(numbers).tolist():
        offset, size = int(offsets[number]), int(sizes[number])
        ends = file.read(offset, min(size, _MAX_ROW_BYTES)).count(b"\r" if table.ends_by_cr else b"\n")
        if ends:
            yield offset, f"record {number} takes {ends + 1:,} lines, for a quote in it has no end or is not doubled"


def first_csv_record_places(path: str, num_records: int) -> list[tuple[int, int]]:
    """Return offset and size of the first records behind the header."""
    table = cached_csv_table(path)
    with open_refusing_compressed(path) as file:
        places: list[tuple[int, int]] = []
        for offsets, sizes in table.records(file).places():
            places += zip(offsets.tolist(), sizes.tolist(), strict=True)
            if len(places) >= num_records:
                break
    return places[:num_records]


def row_json(path: str, file: File, row_number: int, offset: int, size: int) -> bytes:
    """Return the JSON of a record, with names in place of images in base64; raises Skip if it can't be read."""
    if size > _MAX_ROW_BYTES:
        detail = f"record {row_number} has {format_bytes(size)}, and {format_bytes(_MAX_ROW_BYTES)} are read"
        raise Skip(Reason.INVALID_JSON, detail)
    _, table = _open_tables.get(path, file.version)
    return json_with_media_names(table.cells(file.read(offset, size)), f"{table.name}::{row_number}")


def open_cell(path: str, key: str) -> File:
    """Decode an image in base64 of a cell. `key`: number of the record, and the column; KeyError: there is none."""
    file, table = _open_tables.get(path)
    row, way = split_cell_key(key)
    where = (path, file.version)
    offsets, sizes = _kept_places.get(where) or _kept_places.put(where, _all_places(table.records(file)))
    if row >= len(offsets):
        raise KeyError(key)
    cells = table.cells(file.read(int(offsets[row]), min(int(sizes[row]), _MAX_ROW_BYTES)))
    return InMemoryFile(medium_at(way, partial(get_item_of_record, cells)), file.version)
