"""WebDataset tars as a source: which shards, which samples in them, and one sample's record and media.

A member's key is its path up to the first dot of the basename, its part the rest, as Energon groups them; the
members of a sample are adjacent. Nothing is unpacked and nothing is written beside the tars.
"""

import glob
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from energon_pack.errors import PackError
from energon_pack.record import ReadSettings, Record, caption_record, load_json, parse_record
from energon_pack.sample import Reason, Skip
from energon_pack.sources.selection import read_selection
from energon_pack.sources.tar import Damage, TarScan, compression

#: Raised when the index of a shard would come out differently.
INDEX_VERSION = 1

_PART_TYPE = pa.list_(pa.struct([("name", pa.string()), ("offset", pa.int64()), ("size", pa.int64())]))
INDEX_SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("record_part", pa.string()),  # json or txt
        ("record_offset", pa.int64()),
        ("record_size", pa.int64()),
        ("parts", _PART_TYPE),  # all others, in the tar's order
        ("reason", pa.string()),
        ("detail", pa.string()),
    ]
)
_RECORD_PARTS = ("json", "txt")
_SKIPPED_FOLDER = re.compile("__[^/]*__/")
_COMPRESSED_NAMES = re.compile(r"\.(tgz|tbz2?|txz|tar\.(gz|bz2|xz|zst|zstd|lz4))$")


@dataclass(frozen=True)
class Shard:
    """One source tar, and how to tell whether it is still the same."""

    name: str  # path relative to the source, with forward slashes
    path: str
    size: int
    mtime_ns: int


# ------------------------------------------------------------------------------------------------- which shards


@dataclass(frozen=True)
class Source:
    """The tars that `source.path` names, and what of them is left out."""

    shards: list[Shard]  # in name order
    folders: list[Path]  # whose whole content belongs to the source
    excluded: frozenset[tuple[str, str]] = frozenset()  # samples left out, as (shard name, key)
    num_in_other_shards: int = 0  # samples of shards left out whole, as far as the source says


def find_shards(path: str | Sequence[str], split: str | None = None) -> Source:
    """The tars of a source.

    Args:
        path: a folder (searched recursively), a tar, a glob, or a list of these.
        split: the part of a folder's `split.yaml` to take; None takes all. What the folder excludes is always out.

    Raises:
        PackError: nothing there, no such split, or compressed tars among it.
    """
    found: dict[str, str] = {}  # real path → path
    roots: list[str] = []
    folders: list[str] = []
    excluded: set[tuple[str, str]] = set()
    num_in_other_shards = 0
    for entry in [path] if isinstance(path, str) else path:
        root, entry_folders, tars = _expand(os.path.expanduser(entry))
        for folder in entry_folders:
            selection = read_selection(Path(folder), split)
            for tar in _walk(folder):
                name = Path(os.path.relpath(tar, folder)).as_posix()
                if selection.has(name):
                    tars.append(tar)
                    excluded |= {(tar, key) for shard, key in selection.excluded_samples if shard == name}
                else:
                    num_in_other_shards += selection.shard_counts.get(name, 0)
        if not tars:
            raise PackError(f"source.path={entry}: no *.tar there" + (f" in the split {split}" if split else ""))
        if split is not None and not entry_folders:
            raise PackError(f"source.split={split} needs a folder that Energon has prepared, not {entry}")
        roots.append(root)
        folders += entry_folders
        found.update({os.path.realpath(tar): tar for tar in tars})
    compressed = sorted(tar for tar in found.values() if _COMPRESSED_NAMES.search(tar))
    if compressed:
        raise PackError(_refusal(compressed[0], len(compressed)))
    common = os.path.commonpath([os.path.abspath(root) for root in roots])
    names = {tar: Path(os.path.relpath(tar, common)).as_posix() for tar in found.values()}
    return Source(
        shards=sorted((_shard(name, tar) for tar, name in names.items()), key=lambda shard: shard.name),
        folders=[Path(folder).resolve() for folder in folders],
        excluded=frozenset((names[tar], key) for tar, key in excluded if tar in names),
        num_in_other_shards=num_in_other_shards,
    )


def _shard(name: str, path: str) -> Shard:
    status = os.stat(path)
    return Shard(name, os.path.abspath(path), status.st_size, status.st_mtime_ns)


def _expand(entry: str) -> tuple[str, list[str], list[str]]:
    """What an entry's names are relative to, and the folders and files it stands for."""
    if os.path.isdir(entry):
        return entry, [entry], []
    if os.path.isfile(entry):
        return os.path.dirname(entry) or ".", [], [entry]
    if not glob.has_magic(entry):
        raise PackError(f"source.path={entry}: no such folder or tar")
    fixed = re.split(r"[*?\[]", entry, maxsplit=1)[0]
    matches = sorted(glob.glob(entry, recursive=True))
    files = [match for match in matches if os.path.isfile(match)]
    return os.path.dirname(fixed) or ".", [match for match in matches if os.path.isdir(match)], files


def _walk(folder: str) -> list[str]:
    tars = []
    seen = set()
    for here, folders, files in os.walk(folder, followlinks=True):
        status = os.stat(here)
        if (status.st_dev, status.st_ino) in seen:  # a link back up
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        tars += [os.path.join(here, f) for f in files if f.endswith(".tar") or _COMPRESSED_NAMES.search(f)]
    return tars


def _refusal(path: str, number: int = 1) -> str:
    with open(path, "rb") as file:
        command = compression(file.fileno()) or "unpack"
    stem = _COMPRESSED_NAMES.sub("", path).removesuffix(".tar")
    plain = f"{stem}.tar" if _COMPRESSED_NAMES.search(path) else f"{stem}.plain.tar"
    others = f" (and {number - 1} more)" if number > 1 else ""
    return f"{path}{others} is compressed, tars are read in place: unpack it first: {command} < {path} > {plain}"


# ------------------------------------------------------------------------------------------- samples of a shard


def index_shard(shard: Shard) -> pa.Table:
    """Where each sample's files are: one row of `INDEX_SCHEMA` a sample, damage in the schema's metadata.

    A key twice in a shard is a `duplicate_key` (the first wins); a key that comes back with other parts after
    another key was `non_adjacent_member`.

    Raises:
        PackError: the shard is compressed, or can't be opened.
    """
    try:
        fd = os.open(shard.path, os.O_RDONLY)
    except OSError as error:
        raise PackError(f"{shard.path}: {error.strerror}") from None
    try:
        if compression(fd):
            raise PackError(_refusal(shard.path))
        scan = TarScan(fd, shard.size)
        rows = _Rows()
        for name, offset, size in scan:
            rows.add(name, offset, size)
        rows.end(scan.damage)
    finally:
        os.close(fd)
    damage = json.dumps([(item.offset, item.what) for item in scan.damage])
    return rows.table().replace_schema_metadata({"damage": damage})


def damage_of(schema: pa.Schema) -> list[tuple[int, str]]:
    """(offset, what) of each damage `index_shard` met."""
    return [(offset, what) for offset, what in json.loads((schema.metadata or {}).get(b"damage", b"[]"))]


class _Rows:
    """Groups members into samples, columns growing as the scan goes on."""

    def __init__(self) -> None:
        self._keys: list[str] = []
        self._records: list[tuple[str, int, int] | tuple[None, None, None]] = []  # part, offset, size
        self._reasons: list[tuple[str, str] | tuple[None, None]] = []  # reason, detail
        self._parts: list[tuple[str, int, int]] = []
        self._part_starts = [0]
        self._first: dict[str, int] = {}  # key → its first row
        self._key: str | None = None
        self._group: dict[str, tuple[str, int, int]] = {}  # part → part, offset, size

    def add(self, name: str, offset: int, size: int) -> None:
        start = name.rfind("/") + 1
        dot = name.find(".", start)
        if dot <= start or ("__" in name and _SKIPPED_FOLDER.search(name)):
            return  # no part, a hidden file, or a folder of metadata
        key, part = name[:dot], name[dot + 1 :]
        if key != self._key or part in self._group:
            self._flush()
            self._key = key
        self._group[part] = (part, offset, size)

    def end(self, damage: Sequence[Damage]) -> None:
        """Close the last sample, and give every damage that hides one a row of its own."""
        cut_keys = {self._key_of(item.cut) for item in damage if item.cut}
        if self._key in cut_keys:
            self._group = {}
        self._flush(Reason.TRUNCATED_TAR if damage else Reason.MISSING_JSON)
        for item in damage:
            if item.cut or item.hides:
                key = self._key_of(item.cut) if item.cut else f"@{item.offset}"
                self._append(key, None, Reason.TRUNCATED_TAR, f"{item.what} at byte {item.offset}")

    def _key_of(self, name: str) -> str:
        return name[: name.find(".", name.rfind("/") + 1)]

    def _flush(self, without_record: Reason = Reason.MISSING_JSON) -> None:
        key, group = self._key, self._group
        if key is None or not group:
            return
        self._group = {}
        names = ", ".join(group)
        record = group.pop("json", None) or group.pop("txt", None)
        self._parts += group.values()
        first = self._first.setdefault(key, len(self._keys))
        if first < len(self._keys):
            there = self._parts_of_row(first)
            again = not there.isdisjoint(group) or (record is not None and record[0] in there)
            reason = Reason.DUPLICATE_KEY if again else Reason.NON_ADJACENT_MEMBER
            self._append(key, record, reason, f"{names} of a key that was there before"[:300])
        elif record is None:
            self._append(key, None, without_record, f"only {names}"[:300])
        else:
            self._append(key, record)

    def _parts_of_row(self, row: int) -> set[str | None]:
        start, end = self._part_starts[row : row + 2]
        return {part[0] for part in self._parts[start:end]} | {self._records[row][0]}

    def _append(
        self, key: str, record: tuple[str, int, int] | None, reason: Reason | None = None, detail: str = ""
    ) -> None:
        self._keys.append(key)
        self._records.append(record or (None, None, None))
        self._reasons.append((reason.value, detail) if reason else (None, None))
        self._part_starts.append(len(self._parts))

    def table(self) -> pa.Table:
        fields = list(_PART_TYPE.value_type)
        parts = pa.ListArray.from_arrays(
            pa.array(self._part_starts, pa.int32()),
            pa.StructArray.from_arrays(_columns(self._parts, fields), fields=fields),
        )
        schema = {field.name: field for field in INDEX_SCHEMA}
        record = _columns(self._records, [schema[f"record_{name}"] for name in ("part", "offset", "size")])
        reason = _columns(self._reasons, [schema["reason"], schema["detail"]])
        return pa.table([pa.array(self._keys, pa.string()), *record, parts, *reason], schema=INDEX_SCHEMA)


def _columns(rows: Sequence[tuple[Any, ...]], fields: list[pa.Field]) -> list[pa.Array]:
    columns = zip(*rows, strict=True) if rows else [()] * len(fields)
    return [pa.array(values, field.type) for values, field in zip(columns, fields, strict=True)]


# --------------------------------------------------------------------------------------------------- one sample


def read_record(fd: int, part: str, offset: int, size: int, has_media: bool, settings: ReadSettings) -> Record:
    """The record of one sample from its JSON, or from the text that captions its media.

    Raises:
        Skip: as `parse_record`, and `missing_json` for a text that is no caption.
    """
    raw = os.pread(fd, size, offset)
    if part == "json":
        return parse_record(load_json(raw), settings)
    if not has_media or settings.sample_type not in ("auto", "captioning"):
        raise Skip(Reason.MISSING_JSON, "only a txt")
    try:
        return caption_record(raw.decode(), settings)
    except UnicodeDecodeError as error:
        raise Skip(Reason.BAD_MESSAGE, f"the txt is not UTF-8: {error}") from None


def parts_of(table: pa.Table) -> list[list[Any]]:
    """The `parts` column as one list a row of tuples in the order of the struct's fields."""
    column = table.column("parts").combine_chunks()
    starts = column.offsets.to_pylist()
    values = column.values
    flat = list(zip(*(values.field(i).to_pylist() for i in range(values.type.num_fields)), strict=True))
    return [flat[start:end] for start, end in pairwise(starts)]
