"""Count the samples of a packet of Opus from its first bytes."""

RATE = 48_000  # samples a second, whatever the sound had before it was encoded
_LONG = (480, 960, 1920, 2880)


def _frame(kind: int) -> int:
    return _LONG[kind & 3] if kind < 12 else (480, 960)[kind & 1] if kind < 16 else 120 << (kind & 3)


#: samples of a packet by its first byte; 0: the second byte has the number of frames
SAMPLES = tuple(_frame(first >> 3) * (1, 2, 2, 0)[first & 3] for first in range(256))


def num_samples(data: bytes, position: int = 0) -> int:
    """Return the number of samples, at `RATE` a second, of the packet that begins at a position.

    Raises:
        IndexError: the packet ends too early.
    """
    first = data[position]
    return SAMPLES[first] or _frame(first >> 3) * (data[position + 1] & 63)
