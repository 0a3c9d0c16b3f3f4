"""Jobs that do not end by themselves; a script of a test can import them."""

import ctypes
import os
import time
from pathlib import Path


def sleep(path: Path) -> None:
    path.write_text(str(os.getpid()))
    time.sleep(600)


def hold(path: Path) -> None:
    """A deadlock as natural as it gets: no thread of this process can run Python any more, and none ever returns."""
    path.write_text(str(os.getpid()))
    ctypes.PyDLL(None).pause()
