"""Keep files of a source open, including media inside other files."""

import os
from collections.abc import Callable, Sequence
from typing import Any

from energon_pack.run.recent import Recent
from energon_pack.sources.inside import open_inside, split_name
from energon_pack.sources.storage import File, open_file, read_ahead


def open_medium(path: str) -> File:
    """Open a file for reading, or a medium inside a file; raises like `open_file` and `open_inside`."""
    file, key = split_name(path)
    return open_file(path) if key is None else open_inside(file, key)


_MOST_OPEN = 64


def _none_open() -> Recent[str, File]:
    return Recent(_MOST_OPEN, close=lambda file: file.close())


class OpenFiles:
    """Open files by their paths, the least recently used closed first. Each process opens its own."""

    def __init__(self) -> None:
        self._open = _none_open()
        self._ahead: list[File] = []  # files with ranges that were read ahead
        self._process = os.getpid()

    def open(self, path: str, opened: Callable[[], File] | None = None) -> File:
        """Return the file of a path; open it if it is not open.

        Args:
            opened: opens it; None: `open_medium` does.
        """
        if self._process != os.getpid():  # open files belong to the process that this one was forked from
            self._open, self._process = _none_open(), os.getpid()
        return self._open.get(path) or self._open.put(path, opened() if opened else open_medium(path))

    def read_ahead(self, wanted: Sequence[tuple[File, Sequence[tuple[int, int]]]]) -> None:
        """Do `storage.read_ahead`, and drop everything that was read ahead before: only one batch is kept."""
        before, self._ahead = self._ahead, [file for file, _ in wanted]
        read_ahead([*((file, ()) for file in before if file not in self._ahead), *wanted])

    def __len__(self) -> int:
        return len(self._open)

    def __reduce__(self) -> Any:
        return OpenFiles, ()

    def __enter__(self) -> "OpenFiles":
        return self

    def __exit__(self, *_: object) -> None:
        self._open.clear()
