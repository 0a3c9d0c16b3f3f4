"""Find characters on which Unicode tables of different age may differ: words around them are left to the reference."""

import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

import numpy as np
import numpy.typing as npt

_EMOJI = range(0x1F000, 0x1FB00)  # symbols, or unassigned in old tables: never letters, numbers or spaces
_CJK = range(0x20000, 0x2A6D7)  # letters of Extension B, which old tables have, too
_LOWER_CASE_OF_OTHERS = "\u017f\u212a"  # some tokenizers match these in contractions


def doubtful(texts: Sequence[str]) -> set[int]:
    """Return the indices of texts with a doubtful character."""
    codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
    ends = list(accumulate(map(len, texts)))
    return set(np.searchsorted(ends, np.flatnonzero(_is_doubtful()[codes]), side="right").tolist())


@lru_cache(maxsize=1)
def _is_doubtful() -> npt.NDArray[np.bool_]:
    """Return for each code point whether it is doubtful: newer than Unicode 3.2.

    Python contains that table, so the result is the same everywhere.
    """
    category = unicodedata.ucd_3_2_0.category
    is_doubtful = np.ones(0x110000, bool)
    is_doubtful[:0x20000] = np.array([*map(category, map(chr, range(0x20000)))]) == "Cn"
    for old in (_EMOJI, _CJK):
        is_doubtful[old.start : old.stop] = False
    is_doubtful[list(map(ord, _LOWER_CASE_OF_OTHERS))] = True
    return is_doubtful
