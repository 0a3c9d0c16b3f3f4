"""Sums over the members of each pack, so that training can deal packs without their plan: `.nv-meta/packs.npy`."""

import io
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt


class PackSums(NamedTuple):
    """A value for each pack in each column, in the order of the plan; the file has them as float64[num_packs, 4]."""

    lm: npt.NDArray[Any]  # cost in the language model
    vision: npt.NDArray[Any]  # in the vision encoder
    tokens: npt.NDArray[Any]
    trained: npt.NDArray[Any]  # of the tokens

    @classmethod
    def read(cls, data: bytes) -> "PackSums":
        """Read the file; raises ValueError if it is damaged."""
        return cls(*np.load(io.BytesIO(data), allow_pickle=False).T)

    def to_bytes(self) -> bytes:
        """Return the file."""
        file = io.BytesIO()
        np.save(file, np.stack(self, axis=1), allow_pickle=False)
        return file.getvalue()
