"""The policy that tells a browser what a page may do: show its own content, and fetch, send and run nothing else."""

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
    """Return the Content-Security-Policy of a page.

    All text from data is escaped. The policy helps if some is not: a page holds words and names of strangers.

    Args:
        script: the script of the page, without its tags; the browser runs no other. Empty: the page has none.
    """
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return "; ".join((*_SHOWS_ITSELF, *([f"script-src 'sha256-{allowed}'"] if script else [])))
