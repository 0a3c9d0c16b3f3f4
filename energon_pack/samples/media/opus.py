"""Count the samples of a packet of Opus from its first bytes."""

_LONG = (480, 960, 1920, 2880)


def num_samples(data: bytes, position: int = 0) -> int:
    """Return the number of samples, at 48,000 a second, of the packet that begins at a position.

    Raises:
        IndexError: the packet ends too early.
    """
    kind, code = data[position] >> 3, data[position] & 3
    frame = _LONG[kind & 3] if kind < 12 else (480, 960)[kind & 1] if kind < 16 else 120 << (kind & 3)
    return frame * (1 if code == 0 else 2 if code < 3 else data[position + 1] & 63)
