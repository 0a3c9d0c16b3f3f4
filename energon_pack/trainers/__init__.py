"""Packs for trainers that have loaders of their own: rows, a collator, a loss, and a check of the whole path."""
