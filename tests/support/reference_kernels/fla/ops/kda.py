"""Kimi's delta attention: the gated delta rule with a decay for each key dimension."""

from fla.ops.gated_delta_rule import chunk_gated_delta_rule as chunk_kda

__all__ = ["chunk_kda"]
