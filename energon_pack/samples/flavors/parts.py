"""The parts of an Energon sample: bytes, or what a decoder made of them."""

import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from energon_pack.samples.media.formats import format_of, kind_by_name
from energon_pack.samples.media.lazy_image import LazyImage

Parts = Mapping[str, Any]


def json_of(part: Any) -> Any:
    return json.loads(part) if isinstance(part, (bytes, str)) else part


def image_of(parts: Parts, name: str) -> Any:
    """An image from its bytes, not yet decoded, or what a decoder made of them."""
    value = parts.get(name)
    is_undecoded = value is None or isinstance(value, bytes)
    return LazyImage(value, f"{parts.get('__key__')}.{name}") if is_undecoded else value


def kind_of(parts: Parts, name: str) -> str:
    """Content decides; of a part that is missing, or that a decoder was at, its name."""
    value = parts.get(name)
    if isinstance(value, bytes):
        format = format_of(value[:16])
        return format.kind if format else "image"
    return kind_by_name(name) or "image"


def positions_of(part: Any) -> Any:
    """The array of a .npy."""
    return np.load(io.BytesIO(part), allow_pickle=False) if isinstance(part, bytes) else part
