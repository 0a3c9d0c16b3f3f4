"""Reads sources: indexes the place of each sample, and reads single samples by their places."""
