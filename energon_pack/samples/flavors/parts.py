"""Reads the parts of an Energon sample, which are bytes or already decoded."""

import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from energon_pack.samples.media.audio import stream_format
from energon_pack.samples.media.formats import kind_by_name
from energon_pack.samples.media.lazy_image import LazyImage

Parts = Mapping[str, Any]


def json_of(part: Any) -> Any:
    return json.loads(part) if isinstance(part, (bytes, str)) else part


def image_of(parts: Parts, name: str) -> Any:
    """Return an image: not yet decoded if the part is bytes, else the image that Energon's decoder made."""
    value = parts.get(name)
    is_undecoded = value is None or isinstance(value, bytes)
    return LazyImage(value, f"{parts.get('__key__')}.{name}") if is_undecoded else value


def kind_of(parts: Parts, name: str) -> str:
    """Tell the kind of a part by its content, or by its name if the part is missing or already decoded."""
    value = parts.get(name)
    if isinstance(value, bytes):
        container = stream_format(value[:16], io.BytesIO(value))
        return container.kind if container else "image"
    return kind_by_name(name) or "image"


def positions_of(part: Any) -> Any:
    """Return the array of a .npy part."""
    return np.load(io.BytesIO(part), allow_pickle=False) if isinstance(part, bytes) else part
