"""What a page may do, as its browser is told: show what is in it, and fetch, send and run nothing else."""

import base64
import hashlib

_SHOWS_ITSELF = (
    "default-src 'none'",
    "img-src data:",
    "style-src 'unsafe-inline'",
    "base-uri 'none'",
    "form-action 'none'",
)


def content_policy(script: str = "") -> str:
    """The Content-Security-Policy of a page.

    All text of data is escaped. This is for the case that some is not: a page holds words and names of strangers.

    Args:
        script: the one that the page has, between its tags; any other is not run. Empty: it has none.
    """
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return "; ".join((*_SHOWS_ITSELF, *([f"script-src 'sha256-{allowed}'"] if script else [])))
