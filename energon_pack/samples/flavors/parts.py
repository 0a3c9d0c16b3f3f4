"""Tells the kinds of the parts of an Energon sample, which are bytes or already decoded."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from energon_pack.samples.media.containers import stream_format
from energon_pack.samples.media.formats import kind_by_name
from energon_pack.samples.media.kinds import IMAGE, KINDS
from energon_pack.samples.parts import Parts, medium_of


def media_by_kind(parts: Parts, media: Sequence[tuple[str, str]]) -> dict[str, list[Any]]:
    """Return the media of a sample by kind.

    Args:
        media: name and kind of each, in the order of their placeholders.
    """
    return {kind: [medium_of(parts, name, own) for name, own in media if own == kind] for kind in KINDS}


def kind_of(parts: Parts, name: str) -> str:
    """Tell the kind of a part by its content, or by its name if the part is missing or already decoded."""
    value = parts.get(name)
    if isinstance(value, bytes):
        container = stream_format(value[:16], io.BytesIO(value))
        return container.kind if container else IMAGE.kind
    return kind_by_name(name) or IMAGE.kind


def positions_of(part: Any) -> Any:
    """Return the array of a .npy part."""
    return np.load(io.BytesIO(part), allow_pickle=False) if isinstance(part, bytes) else part
