"""Packs without a plan: what is drawn, what waits, and which of it shares the next pack."""
