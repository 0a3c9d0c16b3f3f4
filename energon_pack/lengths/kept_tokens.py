"""Keep the tokens that measuring made, and the conversation it read: a run that writes the samples looks them up.

    <cache of lengths>/<8 hexadecimal digits>.tokens: b"EPKT" │ entry │ entry … as many as one job measured
    an entry: its CRC-32, begun with the checksum of its sample │ bytes of the JSON, and of the ids │ JSON │ ids
    JSON: rows of ids, trained ranges, weights, media, factor, messages, tools, fields

The column `kept` of the lengths says where an entry lies: the digits of its file, then its offset, 32 bits each. An
entry that is not there, was damaged, or is of another sample is None: the sample is then tokenized anew. So files may
go at any time: the oldest where all of a cache have more than `_MAX_CACHE_BYTES` bytes, and all of a folder with any of
its lengths.
"""

import json
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields
from operator import methodcaller
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt

from energon_pack.run.files import write_atomically
from energon_pack.samples.conversation import ReadSample
from energon_pack.samples.member import MediumInput, MemberTokens, PixelStep
from energon_pack.sources.media_files import OpenFileCache

_MAGIC = b"EPKT"
_HEAD, _SIZES = struct.Struct("<III"), struct.Struct("<II")  # (CRC-32, bytes of JSON, of ids); without CRC-32
_ID_DTYPE = np.dtype("<u4")
_MAX_FILE_BYTES = 64 << 20  # of a file: what comes behind is not kept
_MAX_CACHE_BYTES = 16 << 30
_STEPS_INDEX = [field.name for field in fields(MediumInput)].index("steps")
_READ_BYTES = 8192  # bytes of an entry that are read at once
_FORMAT_VERSION = 1  # raise it with the form of entries, or where the same sample gets another conversation
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=methodcaller("item")).encode


class KeptSample(NamedTuple):
    """The tokens and the conversation of one sample, read back from a file."""

    tokens: MemberTokens
    #: messages, tools and other fields; None: it has images with times, which lie in other files, too
    conversation: list[Any] | None


class TokenWriter:
    """Collects the tokens of a job's samples in memory, and writes them to one file when the job ends."""

    def __init__(self) -> None:
        self._entries, self._num_bytes = [_MAGIC], len(_MAGIC)

    def add(self, tokens: MemberTokens, sample: ReadSample, checksum: int) -> int:
        """Add the tokens of a sample; return their byte offset in the file, or 0 if the file is full (not added)."""
        entry = _entry(
            tokens, [] if sample.has_time_fields else [sample.messages, sample.tools, sample.fields], checksum
        )
        place = self._num_bytes
        if place + len(entry) > _MAX_FILE_BYTES:
            return 0
        self._entries.append(entry)
        self._num_bytes += len(entry)
        return place

    def write(self, folder: Path) -> int:
        """Write the file; return its number << 32, to which a sample's offset is added for the column `kept`."""
        data = b"".join(self._entries)
        number = crc32(data)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / _name(number), data, sync=False)
        return number << 32


class KeptTokenReader:
    """Reads tokens back from the files that `TokenWriter` wrote to a folder."""

    def __init__(self, folder: Path):
        self._folder, self._files = folder, OpenFileCache()

    def find(self, file_and_offset: int, checksum: int) -> KeptSample | None:
        """Return the tokens and conversation of a sample; None: they were not kept, or their file is gone or damaged.

        Args:
            file_and_offset: the sample's value in the column `file_and_offset`; 0: it was not kept.
            checksum: the sample's checksum; if that of the entry differs, the file is damaged and is removed.
        """
        if not file_and_offset:
            return None
        path = f"{self._folder}/{_name(file_and_offset >> 32)}"
        try:
            file = self._files.open(path)
        except OSError:
            return None
        place = file_and_offset & 0xFFFFFFFF
        data = file.read(place, _READ_BYTES)
        checksum_of_entry, json_len, ids_len = _HEAD.unpack_from(data.ljust(_HEAD.size, b"\0"))
        size = _HEAD.size + json_len + ids_len
        if len(data) < size <= _MAX_FILE_BYTES:
            data = file.read(place, size)
        if checksum_of_entry != crc32(memoryview(data)[4:size], checksum ^ _FORMAT_VERSION):
            Path(path).unlink(missing_ok=True)  # it was cut or damaged
            return None
        return _kept_sample(json.loads(data[_HEAD.size : _HEAD.size + json_len]), data[:size], _HEAD.size + json_len)

    def __enter__(self) -> "KeptTokenReader":
        return self

    def __exit__(self, *_: object) -> None:
        self._files.__exit__()


def remove_token_files(folder: Path) -> None:
    """Remove all token files in a folder."""
    for path in folder.glob("*.tokens"):
        path.unlink(missing_ok=True)


def remove_oldest_token_files(tokens_folder: Path) -> None:
    """Remove the oldest token files in the subfolders of `tokens_folder`, until the others have at most 16 GiB."""
    states = []
    for path in tokens_folder.glob("*/*.tokens"):
        with suppress(FileNotFoundError):  # another process removed it
            states.append((path.stat(), path))
    num_bytes = 0
    for state, path in sorted(states, key=lambda item: item[0].st_mtime_ns, reverse=True):
        num_bytes += state.st_size
        if num_bytes > _MAX_CACHE_BYTES:
            path.unlink(missing_ok=True)


def _name(number: int) -> str:
    return f"{number:08x}.tokens"


def _entry(tokens: MemberTokens, conversation: list[Any], checksum: int) -> bytes:
    values = (
        _run_length_encoded(tokens.ids) if tokens.media else tokens.ids.astype(_ID_DTYPE)[None]
    )  # only media repeat an id
    media = [[*vars(medium).values()] for medium in tokens.media]
    about = [len(values), tokens.supervised, tokens.weights, media, tokens.factor, *conversation]
    text = _encode(about).encode(errors="surrogatepass")
    rest = b"".join([_SIZES.pack(len(text), values.nbytes), text, values.tobytes()])
    return crc32(rest, checksum ^ _FORMAT_VERSION).to_bytes(4, "little") + rest


def _run_length_encoded(ids: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    """Return ids as one row [1, n]; or, where that is shorter, as two rows: the id and the length of each run."""
    ends = np.flatnonzero(ids[1:] != ids[:-1])
    if 2 * len(ends) + 2 >= len(ids):
        return ids.astype(_ID_DTYPE)[None]
    edges = np.empty(len(ends) + 2, np.int64)
    edges[0], edges[1:-1], edges[-1] = -1, ends, len(ids) - 1
    rows = np.empty((2, len(ends) + 1), _ID_DTYPE)
    rows[0], rows[1] = ids[edges[1:]], edges[1:] - edges[:-1]
    return rows


def _kept_sample(values: Sequence[Any], data: bytes, place: int) -> KeptSample:
    num_rows, supervised, weights, media, factor, *conversation = values
    rows = np.frombuffer(data, _ID_DTYPE, offset=place).reshape(num_rows, -1).astype(np.int64)
    ids = rows[0] if num_rows == 1 else np.repeat(*rows)
    tokens = MemberTokens(ids, [*map(tuple, supervised)], weights, [*map(_medium, media)], factor)
    return KeptSample(tokens, conversation or None)


def _medium(values: list[Any]) -> MediumInput:
    values[_STEPS_INDEX] = [PixelStep(*step) for step in values[_STEPS_INDEX]]
    return MediumInput(*values)
