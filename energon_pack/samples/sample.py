"""One sample, independent of any model: its parts, and what kinds of media they are."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from energon_pack.samples.media.formats import kind_by_name

Message = dict[str, Any]
#: under which names a message has its reasoning, the standard one first
REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")


class Part(NamedTuple):
    """One file of a sample: where its bytes are in the shard, or in a file of their own that its name names."""

    name: str
    offset: int
    size: int


class MediaPart(NamedTuple):
    """A part that was looked at: a medium."""

    name: str
    offset: int
    size: int
    kind: str  # image | video
    extension: str  # of the content


AnyPart = Part | MediaPart


def media_type_by_name(names: Sequence[str]) -> str | None:
    """What a sample seems to be by the names of its parts; None where there are no media."""
    kinds = [kind for name in names if (kind := kind_by_name(name))]
    return media_type(kinds) if kinds else None


def media_type(kinds: Sequence[str]) -> str:
    """`text`, `image`, `video`, or `mix` where a sample has both."""
    present = set(kinds)
    return present.pop() if len(present) == 1 else ("mix" if present else "text")
