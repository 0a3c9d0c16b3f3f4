"""Parameters of a test that only `make test-slow` tries."""

from collections.abc import Iterable
from typing import Any

import pytest


def slow(*values: Any) -> Any:
    """One set of arguments; no decorator: pytest would not find a test that this had taken the place of."""
    assert not any(getattr(value, "__name__", "").startswith("test_") for value in values), "@pytest.mark.slow"
    return pytest.param(*values, marks=pytest.mark.slow)


def first_of(values: Iterable[Any]) -> list[Any]:
    """All values; the ordinary run tries the first alone, as the others show the same of another flavour or store."""
    first, *others = values
    return [first, *map(slow, others)]
