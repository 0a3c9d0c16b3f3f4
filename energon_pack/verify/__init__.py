"""Verify that a packed dataset is whole, and equals its source: `python -m energon_pack.verify DIR`"""

from energon_pack.verify.command import Options, verify

__all__ = ["Options", "verify"]
