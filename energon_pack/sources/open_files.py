"""Open files of a source; a medium inside of another file is one, too."""

import os
from collections.abc import Callable, Sequence
from typing import Any

from energon_pack.run.recent import Recent
from energon_pack.sources.inside import open_inside, split_name
from energon_pack.sources.storage import File, open_file, read_ahead


def open_medium(path: str) -> File:
    """A file for reading, or a medium inside of one as if it were one; as `open_file` and `open_inside`."""
    file, key = split_name(path)
    return open_file(path) if key is None else open_inside(file, key)


_MOST_OPEN = 64


def _none_open() -> Recent[str, File]:
    return Recent(_MOST_OPEN, close=lambda file: file.close())


class OpenFiles:
    """Files by their paths, the least recently used closed first. Each process opens its own."""

    def __init__(self) -> None:
        self._open = _none_open()
        self._ahead: list[File] = []  # of which something was read ahead
        self._process = os.getpid()

    def open(self, path: str, opened: Callable[[], File] | None = None) -> File:
        """The file of a path, opened where it is not.

        Args:
            opened: opens it; None: `open_medium` does.
        """
        if self._process != os.getpid():  # those that are open are of the process that this one was forked from
            self._open, self._process = _none_open(), os.getpid()
        return self._open.get(path) or self._open.put(path, opened() if opened else open_medium(path))

    def read_ahead(self, wanted: Sequence[tuple[File, Sequence[tuple[int, int]]]]) -> None:
        """As `storage.read_ahead`, in place of what was read ahead of any of these files before: one batch is kept."""
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
