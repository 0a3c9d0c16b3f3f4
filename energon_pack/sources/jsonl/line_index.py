"""Index the samples of a JSONL file: one JSON value in each line, the elements of one JSON array, or of the array
`data` of one JSON object, or COCO captions.

The file is read in order, and memory holds 24 bytes a sample. Lines are numbered as in an editor; in an array, elements
are numbered. A file that ends within a line or an array was cut: that is damage, as in a tar.
"""

import json
import mmap
import re
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from itertools import islice
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from energon_pack.errors import PackError
from energon_pack.run.files import digest_of_rest
from energon_pack.run.untrusted_input import parse_json
from energon_pack.samples.bytes import as_file
from energon_pack.samples.skip import Reason
from energon_pack.sources.jsonl.dialects import is_coco, memory_mapped
from energon_pack.sources.other_formats import describe_foreign_format, open_refusing_compressed
from energon_pack.sources.storage import File
from energon_pack.sources.tar import BLOCK
from energon_pack.sources.wds import INDEX_SCHEMA

_Place = tuple[int, int, int]  # number, offset, size
_BLANK = b" \t\r\n"
#: byte order mark of UTF-8, at the start of a file
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
#: the first two lines of an object that is printed over several lines; does not match two lines of JSONL, even if the
#: first is broken
_MULTILINE_OBJECT_START = re.compile(rb'\{\s*\n\s*"|\{.*\[\s*\n')
_MAX_FIRST_LINE_BYTES = 64 << 20  # bytes, for a file with a list on every line
#: tokens that tell the elements of an array apart; a string is one token, so its content does not matter; its last
#: quotation mark is missing where the text ends within it
_JSON_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*("?)|[][{},]', re.DOTALL)
#: how a damage is called
NUL_DAMAGE = "NUL bytes in place of text, as a copy leaves them that was not finished"

_BUFFER_BYTES = 1 << 20
_TAR_MAGIC, _TAR_MAGIC_OFFSET = b"ustar", 257

#: `record_part` of a sample that is a line, not a file of a tar
ROW_PART = "line"


class _FileDamage:
    """Collects the damages of a file, as (offset, description). `is_last_bad`: its last sample can't be read."""

    def __init__(self) -> None:
        self.damage: list[tuple[int, str]] = []
        self.is_last_bad = False

    def note_damaged_rest(self, number: int, offset: int, size: int, detail: str) -> "Iterator[_Place]":
        """Note a damage, and yield the place of the rest of the file, which becomes an unreadable last sample."""
        self.damage.append((offset, detail))
        self.is_last_bad = True
        yield number, offset, size


def index_lines(path: str) -> pa.Table:
    """Index a file: a row of `wds.INDEX_SCHEMA` for each sample; its key is the number of its line or array element."""
    numbers, offsets, sizes = (array("q") for _ in range(3))
    bad = _FileDamage()
    with _open_jsonl(path) as file:
        stream = as_file(file, _BUFFER_BYTES)
        digest = digest_of_rest(stream)
        form, places = _sample_places(file, stream, bad)
        for number, offset, size in places:
            numbers.append(number)
            offsets.append(offset)
            sizes.append(size)
    if form is _Form.wrapped and not numbers:
        raise PackError(
            f"{path} is one JSON object over several lines, without a list `data` of samples: jq -c '.FIELD[]' writes"
            " those of another field as lines, jq -c . those of several objects"
        )
    details = [detail for _, detail in bad.damage[-1:] if bad.is_last_bad]
    return make_index_table(np.array(numbers), np.array(offsets), np.array(sizes), digest, details, bad.damage)


def make_index_table(
    numbers: np.ndarray,
    offsets: np.ndarray,
    sizes: np.ndarray,
    digest: str,
    bad: Sequence[str] = (),
    damage: Sequence[tuple[int, str]] = (),
) -> pa.Table:
    """Make a table of `wds.INDEX_SCHEMA`, with digest and damage in the schema's metadata.

    Args:
        numbers, offsets, sizes: [samples]: number of the line or element; offset and size of its bytes in the file.
        bad: for each of the last `len(bad)` samples, why it can't be read; all earlier samples can be read.
        damage: offset and description of each place from which an unknown number of samples may be lost.
    """
    num = len(numbers)
    detail = pa.array([None] * (num - len(bad)) + [*bad], pa.string())
    columns = {
        "key": pa.array(numbers).cast(pa.string()),
        "record_part": pa.repeat(ROW_PART, num),
        "record_offset": pa.array(offsets),
        "record_size": pa.array(sizes),
        "parts": pa.ListArray.from_arrays(
            pa.array(np.zeros(num + 1, np.int32)), pa.array([], INDEX_SCHEMA.field("parts").type.value_type)
        ),
        "reason": pa.array([None] * (num - len(bad)) + [Reason.INVALID_JSON.value] * len(bad), pa.string()),
        "detail": detail,
    }
    about = {"digest": digest, "damage": json.dumps(damage)}
    return pa.table(columns, schema=INDEX_SCHEMA).replace_schema_metadata(about)


def first_places(path: str, number: int) -> list[tuple[int, int]]:
    """Return offset and size in bytes of the first `number` samples of a file; raises PackError like `index_lines`."""
    with _open_jsonl(path) as file:
        _, places = _sample_places(file, as_file(file, _BUFFER_BYTES), _FileDamage())
        return [(offset, size) for _, offset, size in islice(places, number)]


def _sample_places(file: File, stream: BinaryIO, bad: _FileDamage) -> "tuple[_Form, Iterator[_Place]]":
    """Return the form of a file and the places of its samples; reading these adds damages to `bad`."""
    if is_coco(file):
        return _Form.array, _element_places(file, bad, b'"annotations"')
    form = _detect_form(stream)
    if form is _Form.lines:
        return form, _line_places(stream, bad)
    return form, _element_places(file, bad, b'"data"' if form is _Form.wrapped else None)


def file_digest(path: str) -> str:
    """Return the hash of all bytes of a file."""
    with _open_jsonl(path) as file:
        return digest_of_rest(as_file(file, _BUFFER_BYTES))


@contextmanager
def _open_jsonl(path: str) -> Iterator[File]:
    with open_refusing_compressed(path) as file:
        if other := _other_format(file.read(0, BLOCK)):
            raise PackError(f"{path} is {other}")
        yield file


def _other_format(head: bytes) -> str | None:
    """Name the format of a file without JSON in UTF-8, by its first bytes; None: it may hold JSON."""
    if head.startswith(_TAR_MAGIC, _TAR_MAGIC_OFFSET):
        return "a tar: source=wds reads tars"
    if other := describe_foreign_format(head):
        return other
    encoding = json.detect_encoding(head[:4])
    text = head[: len(head) // 4 * 4].decode(encoding, "ignore").strip()
    if encoding.startswith("utf-8") or text[:1] not in ("{", "["):
        return None
    return f"{encoding.upper()}, and lines are read in UTF-8: iconv writes them so"


class _Form(Enum):
    lines = "lines"
    array = "array"
    wrapped = "wrapped"  # in the field `data` of an object


def _detect_form(file: BinaryIO) -> _Form:
    """Tell whether each line of a file is a value, or the whole file is one."""
    file.seek(0)
    filled = (line for line in iter(lambda: file.readline(_MAX_FIRST_LINE_BYTES), b"") if line.strip(_BLANK))
    first, second = next(filled, b"").removeprefix(BYTE_ORDER_MARK).lstrip(_BLANK), next(filled, b"")
    file.seek(0)
    start = first[:1]
    if start not in (b"[", b"{"):
        return _Form.lines
    try:
        value = parse_json(first)
    except ValueError:
        is_object = _Form.wrapped if _MULTILINE_OBJECT_START.match(first + second) else _Form.lines
        return _Form.array if start == b"[" else is_object
    if second:
        return _Form.lines
    if start == b"[":
        return _Form.array
    listed = value.get("data")
    return _Form.wrapped if isinstance(listed, list) and all(isinstance(item, dict) for item in listed) else _Form.lines


def _line_places(file: BinaryIO, bad: _FileDamage) -> Iterator[_Place]:
    offset, last = 0, None
    for number, line in enumerate(file, 1):
        if not line.isspace():
            if last is not None:
                yield from _place_of_line(*last, bad)
            last = number, offset, line
        offset += len(line)
    if not offset:
        yield from bad.note_damaged_rest(1, 0, 0, "it is empty")
    elif last is not None:
        yield from _places_of_last_line(*last, bad)


def _place_of_line(number: int, offset: int, line: bytes, bad: _FileDamage) -> Iterator[_Place]:
    if (nul := line.find(b"\0")) >= 0:
        bad.damage.append((offset + nul, NUL_DAMAGE))
    yield number, offset, len(line.rstrip(_BLANK))


def _places_of_last_line(number: int, offset: int, line: bytes, bad: _FileDamage) -> Iterator[_Place]:
    """Yield the place of the last line if it is whole, and that of its damaged rest as an unreadable sample."""
    text = line.rstrip(_BLANK + b"\0")
    nul, end = line.find(b"\0"), offset + len(text)
    if is_truncated_json(text):
        yield from bad.note_damaged_rest(
            number, offset, len(line), f"it breaks off within line {number}: {text[-40:]!r}"
        )
    elif nul >= 0 and nul < len(text):
        yield from bad.note_damaged_rest(number, offset, len(line), NUL_DAMAGE)
    else:
        if text:
            yield number, offset, len(text)
        if nul >= 0 or line.endswith(b"\r"):
            detail = NUL_DAMAGE if nul >= 0 else "it breaks off between CR and LF"
            yield from bad.note_damaged_rest(number + bool(text), end, len(line) - len(text), detail)


def is_truncated_json(text: bytes) -> bool:
    """Tell whether a JSON text ends within a string, a list or an object."""
    depth, is_open = 0, False
    for token in _JSON_TOKEN.finditer(text):
        first = token[0][:1]
        depth, is_open = depth + (first in b"[{") - (first in b"]}"), token[1] == b""
    return depth > 0 or is_open


def _element_places(file: File, bad: _FileDamage, field: bytes | None) -> Iterator[_Place]:
    """Yield the place of each element of an array; if the array is cut, then the rest of the file has a place, too.

    `field`: the key in quotes of the object's field that holds the array; None: the array is the whole file.
    """
    outside = 0 if field is None else 1  # depth of the array
    with memory_mapped(file) as data:
        depth = number = start = 0
        last, is_inside, is_open = b"", False, False
        nul = data.find(b"\0")
        end = len(data) if nul < 0 else nul
        for match in _JSON_TOKEN.finditer(data, 0, end):
            token = data[match.start() : match.start() + 1]
            if token in b"[{":
                depth += 1
                if depth == outside + 1 and token == b"[" and (field is None or last == field):
                    start, is_inside = match.end(), True
            elif token in b"]}":
                depth -= 1
            elif token == b'"':
                is_open = match[1] == b""
                last = match[0] if depth == outside else last
            is_end = token == b"]" and depth == outside
            if is_inside and ((token == b"," and depth == outside + 1) or is_end):
                place = _place_without_blanks(data, start, match.start())
                if place[1] or token == b",":
                    number += 1
                    yield number, *place
                start = match.end()
                is_inside = not is_end
            if depth == 0:
                start = match.end()
                break
        is_cut = depth > 0 or is_open
        offset, size = _place_without_blanks(data, start, end)
        if is_inside and size and depth == outside + 1 and not is_open:  # the last element is whole
            number += 1
            yield number, offset, size
            offset, size = end, 0
        goes_on = not is_cut and size and (number or field is None)
        if is_cut or goes_on or nul >= 0:
            detail = "it goes on behind the list" if goes_on else NUL_DAMAGE if nul >= 0 else "it breaks off"
            detail = f"{detail}, after element {number}: {data[offset : offset + 40]!r}"
            yield from bad.note_damaged_rest(number + 1, offset, len(data) - offset, detail)


def _place_without_blanks(data: mmap.mmap | bytes, start: int, end: int) -> tuple[int, int]:
    """Return offset and size of a text without the blanks around it."""
    while start < end and data[start] in _BLANK:
        start += 1
    while start < end and data[end - 1] in _BLANK:
        end -= 1
    return start, end - start
