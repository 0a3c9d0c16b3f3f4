"""Bin packing: integers in, bins out. No I/O, and no step per item.

`pack_bins` is all that others need. Lengths are handled as a histogram and bins as ranges of bins alike; what is
planned for them is dealt out to the items with two sorts.

    packing ──► greedy, exact, drawn, balanced ──► base          one limit
            └─► capped ─────► balanced                           several
"""

from energon_pack.plan.bins.base import Bins
from energon_pack.plan.bins.bounds import lower_bound, lower_bound_l2
from energon_pack.plan.bins.packing import pack_bins

__all__ = ["Bins", "lower_bound", "lower_bound_l2", "pack_bins"]
