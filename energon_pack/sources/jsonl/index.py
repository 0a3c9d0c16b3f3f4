"""Index the samples of a JSONL file: one JSON value in each line, the elements of one JSON array, or of the array
`data` of one JSON object, or COCO captions.

The file is read in order, and memory holds 24 bytes a sample. Lines are numbered as in an editor; in an array, elements
are numbered.
"""

import json
import re
import shlex
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from itertools import islice
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from energon_pack.errors import PackError
from energon_pack.run.files import digest_of_rest
from energon_pack.run.plain_data import json_value
from energon_pack.samples.bytes import as_file
from energon_pack.samples.skip import Reason
from energon_pack.sources.compressed import compressed_error, compression
from energon_pack.sources.jsonl.coco import is_coco, mapped
from energon_pack.sources.other_formats import what_else
from energon_pack.sources.storage import File, open_file
from energon_pack.sources.tar import BLOCK
from energon_pack.sources.wds import INDEX_SCHEMA

_Place = tuple[int, int, int]  # number, offset, size
_BLANK = b" \t\r\n"
_MARK = b"\xef\xbb\xbf"  # byte order mark of UTF-8, at a file's start
#: the first two lines of an object that is printed over several lines; does not match two lines of JSONL, even if the
#: first is broken
_BEGUN = re.compile(rb'\{\s*\n\s*"|\{.*\[\s*\n')
_LONGEST_FIRST_LINE = 64 << 20  # bytes, for a file with a list on every line
#: tokens that tell the elements of an array apart; a string is one token, so its content does not matter
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[][{},]', re.DOTALL)

_BUFFER = 1 << 20
_TAR, _PLACE = b"ustar", 257

#: `record_part` of a sample that is a line, not a file of a tar
LINE = "line"


def index_lines(path: str) -> pa.Table:
    """Return a row of `INDEX_SCHEMA` for each sample; its key is the number of its line, or of its element.

    Raises:
        PackError: the file is compressed, holds something other than JSON in UTF-8, or can't be opened.
    """
    numbers, offsets, sizes = (array("q") for _ in range(3))
    bad: list[str] = []  # damage that ends an array early
    with _open(path) as file:
        stream = as_file(file, _BUFFER)
        digest = digest_of_rest(stream)
        form, places = _places(file, stream, bad)
        for number, offset, size in places:
            numbers.append(number)
            offsets.append(offset)
            sizes.append(size)
    if form is _Form.wrapped and not numbers:
        raise PackError(
            f"{path} is one JSON object over several lines, without a list `data` of samples: jq -c '.FIELD[]'"
            f" < {shlex.quote(path)} writes those of another field as lines, jq -c . those of several objects"
        )
    return index_of(np.array(numbers), np.array(offsets), np.array(sizes), digest, bad)


def index_of(
    numbers: np.ndarray, offsets: np.ndarray, sizes: np.ndarray, digest: str, bad: Sequence[str] = ()
) -> pa.Table:
    """Make the table of `INDEX_SCHEMA`.

    Args:
        numbers, offsets, sizes: for each sample.
        digest: identifies the content of the file.
        bad: why the last samples can't be read.
    """
    num = len(numbers)
    detail = pa.array([None] * (num - len(bad)) + [*bad], pa.string())
    columns = {
        "key": pa.array(numbers).cast(pa.string()),
        "record_part": pa.repeat(LINE, num),
        "record_offset": pa.array(offsets),
        "record_size": pa.array(sizes),
        "parts": pa.ListArray.from_arrays(
            pa.array(np.zeros(num + 1, np.int32)), pa.array([], INDEX_SCHEMA.field("parts").type.value_type)
        ),
        "reason": pa.array([None] * (num - len(bad)) + [Reason.INVALID_JSON.value] * len(bad), pa.string()),
        "detail": detail,
    }
    return pa.table(columns, schema=INDEX_SCHEMA).replace_schema_metadata({"digest": digest})


def first_places(path: str, number: int) -> list[tuple[int, int]]:
    """Return offset and size of the first samples of a file; raises PackError like `index_lines`."""
    with _open(path) as file:
        _, places = _places(file, as_file(file, _BUFFER), [])
        return [(offset, size) for _, offset, size in islice(places, number)]


def _places(file: File, stream: BinaryIO, bad: list[str]) -> "tuple[_Form, Iterator[_Place]]":
    """Find the samples; if damage ends an array early, it is added to `bad` with the last sample."""
    if is_coco(file):
        return _Form.array, _elements(file, bad, b'"annotations"')
    form = _form(stream)
    if form is _Form.lines:
        return form, _lines(stream)
    return form, _elements(file, bad, b'"data"' if form is _Form.wrapped else None)


def is_unchanged(path: str, about: Mapping[str, str]) -> bool:
    """Say whether a file still has the bytes it was indexed with; reads them all again."""
    with _open(path) as file:
        return about["digest"] == digest_of_rest(as_file(file, _BUFFER))


@contextmanager
def _open(path: str) -> Iterator[File]:
    try:
        file = open_file(path)
    except OSError as error:
        raise PackError(f"{path}: {error.strerror}") from None
    with file:
        if compression(file):
            raise compressed_error(path)
        if what := _other_format(file.read(0, BLOCK), path):
            raise PackError(f"{path} is {what}")
        yield file


def _other_format(head: bytes, path: str) -> str | None:
    """Name the format of a file without JSON in UTF-8, by its first bytes, and what to do; None: it may hold JSON."""
    if head.startswith(_TAR, _PLACE):
        return "a tar: source=wds reads tars"
    if what := what_else(head):
        return what
    encoding = json.detect_encoding(head[:4])
    text = head[: len(head) // 4 * 4].decode(encoding, "ignore").strip()
    if encoding.startswith("utf-8") or text[:1] not in ("{", "["):
        return None
    name, iconvs = shlex.quote(path), re.sub("-([lb]e)$", r"\1", encoding).upper()
    return (
        f"{iconvs}, and lines are read in UTF-8: iconv -f {iconvs} -t UTF-8 < {name} > {name}.utf8"
        f" && mv {name}.utf8 {name}"
    )


class _Form(Enum):
    lines = "lines"
    array = "array"
    wrapped = "wrapped"  # in the field `data` of an object


def _form(file: BinaryIO) -> _Form:
    """Tell lines, each of which may be a list of messages or an object, from one value over all lines."""
    file.seek(0)
    filled = (line for line in iter(lambda: file.readline(_LONGEST_FIRST_LINE), b"") if line.strip(_BLANK))
    first, second = next(filled, b"").removeprefix(_MARK).lstrip(_BLANK), next(filled, b"")
    file.seek(0)
    start = first[:1]
    if start not in (b"[", b"{"):
        return _Form.lines
    try:
        value = json_value(first)
    except ValueError:
        is_object = _Form.wrapped if _BEGUN.match(first + second) else _Form.lines
        return _Form.array if start == b"[" else is_object
    if second:
        return _Form.lines
    if start == b"[":
        return _Form.array
    listed = value.get("data")
    return _Form.wrapped if isinstance(listed, list) and all(isinstance(item, dict) for item in listed) else _Form.lines


def _lines(file: BinaryIO) -> Iterator[_Place]:
    offset = 0
    for number, line in enumerate(file, 1):
        if not line.isspace():
            yield number, offset, len(line.rstrip(_BLANK))
        offset += len(line)


def _elements(file: File, bad: list[str], field: bytes | None) -> Iterator[_Place]:
    """Yield the elements of an array; if it is not whole, one more for the rest after the last whole one.

    Args:
        field: the field of an object that has the array, as written there; None: the array is the whole file.
    """
    outside = 0 if field is None else 1  # depth of the array
    with mapped(file) as data:
        depth = number = start = 0
        last, is_inside = b"", False
        for match in _TOKEN.finditer(data):
            token = data[match.start() : match.start() + 1]
            if token in b"[{":
                depth += 1
                if depth == outside + 1 and token == b"[" and (field is None or last == field):
                    start, is_inside = match.end(), True
            elif token in b"]}":
                depth -= 1
            elif token == b'"' and depth == outside:
                last = match[0]
            is_end = token == b"]" and depth == outside
            if is_inside and ((token == b"," and depth == outside + 1) or is_end):
                end = match.start()
                while start < end and data[start] in _BLANK:
                    start += 1
                size = len(data[start:end].rstrip(_BLANK))
                if size or token == b",":
                    number += 1
                    yield number, start, size
                start = match.end()
                is_inside = not is_end
            if depth == 0:
                break
        rest = data[start:].strip(_BLANK)
        if rest and (is_inside or field is None):
            bad.append(f"the array is broken after element {number}: {rest[:40]!r} at byte {start}")
            yield number + 1, start, len(data) - start
