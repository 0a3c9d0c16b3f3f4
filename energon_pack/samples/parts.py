"""Reads the parts of an Energon sample, which are bytes or already decoded."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from energon_pack.run.plain_data import json_value
from energon_pack.samples.media.kinds import AUDIO, IMAGE, KINDS, format_of, kind_by_name
from energon_pack.samples.media.medium import SOUNDS_LIKE

Parts = Mapping[str, Any]


def json_of(part: Any) -> Any:
    return json_value(part) if isinstance(part, (bytes, str)) else part


def medium_of(parts: Parts, name: str, kind: str) -> Any:
    """Return a medium of a pack in the form that training gets: see `Medium.loaded`."""
    return KINDS[kind].loaded(parts.get(name), f"{parts.get('__key__')}.{name}")


def media_by_kind(parts: Parts, media: Sequence[tuple[str, str]]) -> dict[str, list[Any]]:
    """Return the media of a sample by kind."""
    return {kind: [medium_of(parts, name, own) for name, own in media if own == kind] for kind in KINDS}


def kind_of(parts: Parts, name: str) -> str:
    """Tell the kind of a part by its content, or by its name if the part is missing or already decoded."""
    value, named = parts.get(name), kind_by_name(name) or IMAGE.kind
    if not isinstance(value, bytes):
        return named
    found = format_of(value[:16])
    is_of_both = found is not None and found.extension in SOUNDS_LIKE and named == AUDIO.kind
    return named if is_of_both else found.kind if found else IMAGE.kind


def positions_of(part: Any) -> Any:
    """Return the array of a .npy part."""
    return np.load(io.BytesIO(part), allow_pickle=False) if isinstance(part, bytes) else part
