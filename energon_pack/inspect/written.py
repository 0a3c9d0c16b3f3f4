"""Write the page that the user asked for."""

from pathlib import Path

from energon_pack.errors import PackError
from energon_pack.run.console import say


def write_page(out: str, page: str) -> None:
    """Write the page over what is there, which may be a link or a device; print where.

    Raises:
        PackError: it can't be written there.
    """
    try:
        Path(out).write_text(page, encoding="utf-8")
    except OSError as error:
        raise PackError(f"--html {out}: {error.strerror}") from None
    say(f"written: {out} ({len(page) / 1000:,.0f} kB)")
    say("")
