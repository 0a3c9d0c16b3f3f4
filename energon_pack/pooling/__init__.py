"""Make packs without a plan: draw samples, let them wait in a pool, choose which of them share the next pack."""
