"""Find the lengths that fill a room best: an exact subset sum, in the bits of an integer."""

from collections.abc import Iterable


def fullest_sum(lens: Iterable[int], room: int) -> list[int]:
    """Choose the lengths whose sum is the largest that fits the room; among equal sums, the one whose last is earliest.

    Stops reading `lens` when the room is filled. Bit s of `sums` says that some of the lengths so far have the sum s.
    Source: subset sum by bitset, as in Pisinger, "Dynamic programming on the word RAM", 2003.

    Returns:
        The numbers of the lengths, ascending.
    """
    sums, mask = 1, (1 << room + 1) - 1
    reached: list[tuple[int, int, int]] = []  # number, length, and the sums that it was the first to reach
    if room:
        for number, length in enumerate(lens):
            new = sums << length & mask & ~sums
            if new:
                sums |= new
                reached.append((number, length, new))
                if new >> room:
                    break
    at, chosen = sums.bit_length() - 1, []
    for number, length, new in reversed(reached):
        if new >> at & 1:
            chosen.append(number)
            at -= length
    return chosen[::-1]
