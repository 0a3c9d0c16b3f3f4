"""The parts of one sample and the kinds of its media, independent of any model."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from energon_pack.samples.media.kinds import kind_by_extension

Message = dict[str, Any]
#: the keys under which a message may have its role, and its content
ROLE_KEYS, CONTENT_KEYS = ("role", "from"), ("content", "value")
#: the keys under which a message may have its reasoning, the standard one first
REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
#: these, and the one under which Cohere's data have it
THOUGHT_KEYS = (*REASONING_KEYS, "tool_plan")
#: the keys under which a tool call may have its arguments, the standard one first
ARGUMENT_KEYS = ("arguments", "parameters", "args", "input", "action_input")
#: keys of a record that hold its turns
MESSAGE_KEYS = ("messages", "conversations", "texts")


class Part(NamedTuple):
    """One file of a sample: its offset and size in the shard, or in the separate file that its name names."""

    name: str
    offset: int
    size: int


class MediaPart(NamedTuple):
    """A part that is a medium, with its kind and extension by its content."""

    name: str
    offset: int
    size: int
    kind: str  # of `media.kinds.KINDS`
    extension: str  # extension of the content


AnyPart = Part | MediaPart


def media_type_by_name(names: Sequence[str]) -> str | None:
    """Guess the media type of a sample by the names of its parts: a kind, or `mix` for several; None: no media."""
    kinds = [kind for name in names if (kind := kind_by_extension(name))]
    return media_type(kinds) if kinds else None


def media_type(kinds: Sequence[str]) -> str:
    """Return the media type of a sample with media of these kinds: `text`, the one kind, or `mix` for several."""
    present = set(kinds)
    return present.pop() if len(present) == 1 else ("mix" if present else "text")
