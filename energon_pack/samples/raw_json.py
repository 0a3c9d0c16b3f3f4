"""A sample's JSON from its bytes: only values that every other reader of JSON takes, and every tokenizer."""

import json
import math
from functools import reduce
from typing import Any

from energon_pack.samples.skip import Reason, Skip

_MANY_BRACKETS = 200
_NESTING_OF_PACK = 200  # levels kept free for the pack's own JSON, and for readers that recurse


def load_json(raw: bytes) -> Any:
    """Parse one sample's JSON (UTF-8, or UTF-16/32 by its first bytes).

    NaN and infinite numbers, which Python writes and JSON has not, become null: else a strict reader would refuse the
    whole pack the sample is in.

    Raises:
        Skip: `invalid_json`, also for half a surrogate pair, which no tokenizer can encode.
    """
    try:
        return parse_json(raw.decode(json.detect_encoding(raw)))
    except UnicodeDecodeError as error:
        raise Skip(Reason.INVALID_JSON, f"text is not valid Unicode: {error}") from None


def parse_json(text: str) -> Any:
    """As `load_json`, from text."""
    try:
        value = _DECODER.decode(text)
        if "\\u" in text or text.count("[") + text.count("{") > _MANY_BRACKETS:
            # Only an escape can bring half a character in; and what is nested to the limit has no room in a pack.
            json.dumps(reduce(lambda inner, _: [inner], range(_NESTING_OF_PACK), value), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise Skip(Reason.INVALID_JSON, f"text is not valid Unicode: {error}") from None
    except RecursionError:
        raise Skip(Reason.INVALID_JSON, "nested too deeply") from None
    except ValueError as error:
        raise Skip(Reason.INVALID_JSON, str(error)) from None
    return value


def _number(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


_DECODER = json.JSONDecoder(parse_float=_number, parse_constant=_number)
