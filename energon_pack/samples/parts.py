"""Reads the parts of an Energon sample, which are bytes or already decoded."""

from collections.abc import Mapping
from typing import Any

from energon_pack.run.plain_data import json_value
from energon_pack.samples.media.kinds import KINDS

Parts = Mapping[str, Any]


def json_of(part: Any) -> Any:
    return json_value(part) if isinstance(part, (bytes, str)) else part


def medium_of(parts: Parts, name: str, kind: str) -> Any:
    """Return a medium of a pack in the form that training gets: see `Medium.loaded`."""
    return KINDS[kind].loaded(parts.get(name), f"{parts.get('__key__')}.{name}")
