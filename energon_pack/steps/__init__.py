"""Decide which rank reads which pack when: pure functions that planning and training share."""
