"""Show what a packed dataset holds, or will hold: `python -m energon_pack.inspect DIR`, `… --source PATH +model=…`"""

import re
from pathlib import Path

from energon_pack.errors import PackError
from energon_pack.run.console import say

_OVERRIDE = re.compile(r"(\+\+?|~)?[A-Za-z_][\w.@]*=|~[A-Za-z_]")


def is_override(text: str) -> bool:
    """Say whether an argument is an override, as `+model=qwen2_5_vl`, and not a number, key or id."""
    return _OVERRIDE.match(text) is not None


def write_page(out: str, page: str) -> None:
    """Write the page over what is there, which may be a link or a device; print where."""
    try:
        Path(out).write_text(page, encoding="utf-8")
    except OSError as error:
        raise PackError(f"--html {out}: {error.strerror}") from None
    say(f"written: {out} ({len(page) / 1000:,.0f} kB)")
    say("")
