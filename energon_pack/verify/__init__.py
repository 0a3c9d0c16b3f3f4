"""Is a packed dataset whole, and what its source makes it? `python -m energon_pack.verify DIR`"""

from energon_pack.verify.command import Options, verify

__all__ = ["Options", "verify"]
