"""The folder of a packed dataset, on this machine or on an object store: its list of files, and each file by name.

A store is asked once, for the list of its objects. The list has each object's size and version, so no object is asked
for its state, and an object that is overwritten meanwhile is noticed.
"""

import errno
import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from energon_pack.dataset.manifest import MANIFEST, ORDER_FILE, PROCESSOR_FOLDER
from energon_pack.errors import PackError
from energon_pack.run.address import energon_address, is_address, tidy_address
from energon_pack.run.files import META_FOLDER
from energon_pack.run.untrusted_input import parse_json
from energon_pack.sources.storage import File, FileState, list_folder, open_file, path_in, state_of

_COPY_BYTES = 8 << 20


class DatasetFolder:
    """The folder of a packed dataset, local or on a store; files are named by relative paths: `.nv-meta/split.yaml`."""

    def __init__(self, place: str | os.PathLike[str], listed: Mapping[str, FileState | None] | None = None):
        self.path = tidy_address(str(place)) if is_address(place) else str(Path(place))
        if listed is not None:
            self._listed = listed

    def __str__(self) -> str:
        return self.path

    @property
    def name(self) -> str:
        """Return the last part of its path."""
        return PurePosixPath(self.path).name

    @property
    def is_stored(self) -> bool:
        """Say whether it is on an object store."""
        return is_address(self.path)

    @property
    def energon_path(self) -> str:
        """Return its path, or its address in the form that Energon knows: `msc://…`."""
        return energon_address(self.path) if self.is_stored else self.path

    @cached_property
    def _listed(self) -> Mapping[str, FileState | None]:
        return list_folder(self.path, (META_FOLDER, f"{META_FOLDER}/{PROCESSOR_FOLDER}"))

    @property
    def has_files(self) -> bool:
        """Say whether the folder exists and has files."""
        return bool(self._listed)

    @property
    def names(self) -> list[str]:
        """Return the names of all files, sorted."""
        return sorted(name for name in self._listed if not name.endswith("/"))

    @property
    def other_subfolders(self) -> list[str]:
        """Return the names of subfolders other than those of a packed dataset (`.nv-meta` …), sorted."""
        return sorted(name.rstrip("/") for name in self._listed if name.endswith("/"))

    @cached_property
    def shards(self) -> list[str]:
        """Return the names of all shards (the tars in the folder itself), sorted."""
        return [name for name in self.names if name.endswith(".tar") and "/" not in name and not name.startswith(".")]

    def with_only_files(self, *file_names: str) -> "DatasetFolder":
        """Return this folder with only these files in its list, so that it is small to pickle for a worker."""
        return DatasetFolder(self.path, {name: self._listed[name] for name in file_names if name in self._listed})

    def has(self, name: str) -> bool:
        """Say whether a file is there."""
        return name in self._listed

    def path_of(self, name: str) -> str:
        """Return the path of a file, whether it is there or not."""
        return path_in(self.path, name)

    def open(self, name: str) -> File:
        """Open a file for reading; raises FileNotFoundError if the list lacks it, and what `open_file` raises."""
        if name not in self._listed:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path_of(name))
        return open_file(self.path_of(name), self._listed[name])

    def state(self, file_name: str) -> FileState | None:
        """Return the size and version of a file; None if it can't be read."""
        if file_name in self._listed and self._listed[file_name] is None:
            with suppress(OSError):
                return state_of(self.path_of(file_name))
        return self._listed.get(file_name)

    def read(self, name: str) -> bytes:
        """Return the bytes of a file; raises what `open` raises."""
        with self.open(name) as file:
            return file.read(0, file.size)

    def read_json_object(self, name: str) -> dict[str, Any]:
        """Parse a JSON file; raises ValueError if it holds no object."""
        value = parse_json(self.read(name))
        if not isinstance(value, dict):
            raise ValueError(f"a {type(value).__name__}, not an object")
        return value

    @contextmanager
    def local_copy(self, name: str) -> Iterator[Path]:
        """Yield a local path of a file, for code that takes only paths; an object is copied to a temporary file."""
        with self.open(name) as file:
            if not self.is_stored:
                yield Path(self.path_of(name))
                return
            with tempfile.NamedTemporaryFile(prefix="energon_pack-") as copy:
                for start in range(0, file.size, _COPY_BYTES):
                    copy.write(file.read(start, _COPY_BYTES))
                copy.flush()
                yield Path(copy.name)


def dataset_paths_of_order_folder(order_folder: DatasetFolder) -> list[str]:
    """Return the paths of the datasets whose packs an order folder (`energon_pack.order`) sorts; []: it is none."""
    if not order_folder.has(f"{META_FOLDER}/{ORDER_FILE}"):
        return []
    try:
        return [str(part["path"]) for part in order_folder.read_json_object(f"{META_FOLDER}/{MANIFEST}")["parts"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def open_dataset_folder(dataset_path: str | Path) -> DatasetFolder:
    """Return a dataset's folder; raises PackError for an order over several datasets, which holds no packs."""
    folder = DatasetFolder(dataset_path)
    if parts := dataset_paths_of_order_folder(folder):
        raise PackError(f"{folder} is an order over datasets, and holds no packs: name {' or '.join(parts)}")
    return folder


def manifest_digest(folder: DatasetFolder) -> str:
    """Return 16 hex digits of energon_pack.json's SHA-256, which change if the dataset is packed in another way."""
    return hashlib.sha256(folder.read(f"{META_FOLDER}/{MANIFEST}")).hexdigest()[:16]
