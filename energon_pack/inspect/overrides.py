"""Overrides of a config among arguments."""

import re

_OVERRIDE = re.compile(r"(\+\+?|~)?[A-Za-z_][\w.@]*=|~[A-Za-z_]")


def is_override(text: str) -> bool:
    """Whether an argument is one, as `+model=qwen2_5_vl`, and no number, key or id."""
    return _OVERRIDE.match(text) is not None
