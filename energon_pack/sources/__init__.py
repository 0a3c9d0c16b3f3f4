"""Where samples come from: an index of what lies where, and one sample read by its place."""
