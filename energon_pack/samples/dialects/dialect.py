"""A dialect: other fields than `messages` in which a record has its conversation."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Dialect(NamedTuple):
    """A way to write a conversation."""

    name: str
    #: the fields by which it is recognised
    needs: tuple[str, ...]
    #: makes turns of these fields' values; raises Skip for values of other types
    turns: Callable[[Mapping[str, Any], "Dialect"], list[Any]]
    #: optional fields that it reads
    reads: tuple[str, ...] = ()
    #: it also is what `source.sample_type=vqa` looks for
    is_vqa: bool = False
