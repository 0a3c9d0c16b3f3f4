"""Parses a sample's JSON from its bytes, and allows only values that every JSON reader and every tokenizer takes."""

import json
import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

from energon_pack.samples.skip import Reason, Skip
from energon_pack.samples.weights import TURN_WEIGHT_KEYS

_MAX_UNCHECKED_BRACKETS = 200
_SPARE_LEVELS = 200  # levels of nesting kept free for the pack's own JSON, and for recursive readers


def load_json(raw: bytes) -> Any:
    """Parse one sample's JSON (UTF-8, or UTF-16/32 by its first bytes).

    NaN and infinite numbers become null: Python writes them, but a strict reader would refuse the sample's whole pack.
    Where a weight stands, such a number becomes its name, a text, which is refused as every other text is.
    """
    try:
        return parse_json_or_skip(raw.decode(json.detect_encoding(raw)), RECORD_WEIGHT_KEYS)
    except UnicodeDecodeError as error:
        raise Skip(Reason.INVALID_JSON, f"text is not valid Unicode: {error}") from None


def parse_json_or_skip(text: str, weight_keys: Sequence[frozenset[str]] = ()) -> Any:
    """Parse JSON from a text, as `load_json` does; raises Skip: `invalid_json`.

    Args:
        weight_keys: the keys that hold weights: of an object, of those in its lists, and of those in lists of these.
    """
    try:
        try:
            value = _DECODER.decode(text)
        except _NotFinite:
            value = json.loads(text)
            value = _with_finite_numbers(value, weight_keys[1:] if isinstance(value, list) else weight_keys)
        if "\\u" in text or text.count("[") + text.count("{") > _MAX_UNCHECKED_BRACKETS:
            # Only an escape can bring in half a character; a value nested to the limit would not fit into a pack.
            json.dumps(reduce(lambda inner, _: [inner], range(_SPARE_LEVELS), value), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise Skip(Reason.INVALID_JSON, f"text is not valid Unicode: {error}") from None
    except RecursionError:
        raise Skip(Reason.INVALID_JSON, "nested too deeply") from None
    except ValueError as error:
        raise Skip(Reason.INVALID_JSON, str(error)) from None
    return value


class _NotFinite(Exception):
    """Raised for NaN or an infinite number."""


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _NotFinite
    return value


def _with_finite_numbers(value: Any, weight_keys: Sequence[frozenset[str]]) -> Any:
    """Return a JSON value without NaN and infinite numbers: their names stand for weights, null for all others."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_with_finite_numbers(item, weight_keys) for item in value]
    if not isinstance(value, dict):
        return value
    here, below = (weight_keys[0], weight_keys[1:]) if weight_keys else (frozenset[str](), ())
    new = {key: _with_finite_numbers(item, below if isinstance(item, list) else ()) for key, item in value.items()}
    weights = {key: value[key] for key in here.intersection(value) if isinstance(value[key], float)}
    return new | {key: json.dumps(weight) for key, weight in weights.items() if not math.isfinite(weight)}


#: of a sample, of its turns, and of their parts and calls
RECORD_WEIGHT_KEYS = (frozenset(("weight",)), TURN_WEIGHT_KEYS, TURN_WEIGHT_KEYS)
_DECODER = json.JSONDecoder(parse_float=_finite_float, parse_constant=_finite_float)
