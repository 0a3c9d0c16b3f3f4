"""Show what a packed dataset holds, or will hold: `python -m energon_pack.inspect DIR`, `… --source PATH +model=…`"""

import re

_OVERRIDE = re.compile(r"(\+\+?|~)?[A-Za-z_][\w.@]*=|~[A-Za-z_]")


def is_hydra_override(argument: str) -> bool:
    """Tell whether a word of the command line is a Hydra override, as `+model=qwen2_5_vl`, and no number, key or id."""
    return _OVERRIDE.match(argument) is not None
