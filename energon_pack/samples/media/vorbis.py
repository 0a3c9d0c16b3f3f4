"""Counts the samples of packets of Vorbis from the headers of the sound and the first byte of each packet."""

_ONE_MODE = 41  # bits: whether its block is long, two zeros of 16 bits each, and a number up to 63
_MOST_MODES = 64


class Blocks:
    """Counts the samples that each packet adds; it is asked for all packets in their order.

    Attributes:
        rate: samples a second.
    """

    def __init__(self, first: bytes, setup: bytes):
        """Read the first and the third header of a sound.

        Raises:
            IndexError: they are not plain.
        """
        is_plain = len(first) == 30 and first[:11] == b"\x01vorbis" + bytes(4) and first[29] == 1
        modes = _modes(setup) if is_plain and setup[:7] == b"\x05vorbis" else []
        if not modes:
            raise IndexError("headers that are not those of Vorbis")
        sizes = 1 << (first[28] & 15), 1 << (first[28] >> 4)
        self._blocks = [sizes[is_long] for is_long in modes]  # samples, of each mode
        self._mask = (1 << (len(modes) - 1).bit_length()) - 1
        self._previous = 0
        self.rate = int.from_bytes(first[12:16], "little")

    def num_samples(self, data: bytes, place: int = 0) -> int:
        """Return the number of samples of the packet that begins at a place.

        Raises:
            IndexError: the packet is not plain.
        """
        first = data[place]
        if first & 1:
            raise IndexError("a packet that is no sound")
        before, self._previous = self._previous, self._blocks[first >> 1 & self._mask]
        return (before + self._previous) // 4 if before else 0


def _modes(setup: bytes) -> list[int]:
    """Return whether the blocks of each mode are long; the modes are the last that the header says."""
    bits = int.from_bytes(setup[-_MOST_MODES * _ONE_MODE // 8 - 2 :], "little")
    end = bits.bit_length() - 1  # above all else is one bit
    modes: list[int] = []
    found: list[int] = []
    while end >= _ONE_MODE + 6 and len(modes) < _MOST_MODES:
        end -= _ONE_MODE
        mode = bits >> end & ((1 << _ONE_MODE) - 1)
        if mode >> 1 & 0xFFFFFFFF or mode >> 33 > 63:
            break
        modes.insert(0, mode & 1)
        if (bits >> end - 6 & 63) + 1 == len(modes):
            found = list(modes)
    return found
