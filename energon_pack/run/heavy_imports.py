"""Import packages that take seconds: torch, transformers, Energon."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def collect_rarely() -> None:
    """Collect cyclic garbage every 50,000 new objects, not every 700: samples make none, and collecting costs 8 %."""
    gc.set_threshold(50_000, 20, 20)


@contextmanager
def importing() -> Iterator[None]:
    """Import without collecting garbage, then or later, among the imported objects: that takes a fifth of the time."""
    num_modules, was_on = len(sys.modules), gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > num_modules:
            gc.freeze()
        if was_on:
            gc.enable()
