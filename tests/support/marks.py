"""Parameters of a test that only `make test-slow` tries."""

from collections.abc import Iterable
from typing import Any

import pytest


def slow(*values: Any) -> Any:
    """One set of arguments."""
    return pytest.param(*values, marks=pytest.mark.slow)


def first_of(values: Iterable[Any]) -> list[Any]:
    """All values; the ordinary run tries the first alone, as the others show the same of another flavour or store."""
    first, *others = values
    return [first, *map(slow, others)]
