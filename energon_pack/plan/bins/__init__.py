"""Bin packing: integers in, bins out. No I/O, and no step per item.

`pack_bins` is all that others need. Lengths are handled as a histogram, and equal bins as one range of bins; two sorts
then assign the planned places to the items.

    packing ──► greedy, exact, drawn, balanced ──► base          one limit
            └─► capped ─────► balanced                           several
"""

from energon_pack.plan.bins.base import Bins, lower_bound, lower_bound_l2
from energon_pack.plan.bins.packing import pack_bins

__all__ = ["Bins", "lower_bound", "lower_bound_l2", "pack_bins"]
