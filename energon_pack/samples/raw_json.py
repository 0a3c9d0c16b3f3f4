"""Parses a sample's JSON from its bytes, and allows only values that every JSON reader and every tokenizer takes."""

import json
import math
from functools import reduce
from typing import Any

from energon_pack.samples.skip import Reason, Skip

_MAX_UNCHECKED_BRACKETS = 200
_SPARE_LEVELS = 200  # levels of nesting kept free for the pack's own JSON, and for recursive readers


def load_json(raw: bytes) -> Any:
    """Parse one sample's JSON (UTF-8, or UTF-16/32 by its first bytes).

    NaN and infinite numbers become null: Python writes them, but a strict reader would refuse the sample's whole pack.
    """
    try:
        return parse_json(raw.decode(json.detect_encoding(raw)))
    except UnicodeDecodeError as error:
        raise Skip(Reason.INVALID_JSON, f"text is not valid Unicode: {error}") from None


def parse_json(text: str) -> Any:
    """Parse one sample's JSON from a text, as `load_json` does; raises Skip: `invalid_json`."""
    try:
        value = _DECODER.decode(text)
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


def _finite_or_none(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


_DECODER = json.JSONDecoder(parse_float=_finite_or_none, parse_constant=_finite_or_none)
