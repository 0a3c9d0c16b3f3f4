"""Each step's loss beside that of its samples alone, for trainers whose loop is not transformers'.

    python watched_NAME.py OUT.json RECIPE ARGUMENTS…

A plain copy of the model runs each sample alone with the weights before the step, as in `watched.py`.
"""

# ruff: noqa: I001
import copy
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

from support.trainers.watched import alone, noted, of_all_ranks  # first: it prepares torchvision

import torch

from energon_pack.on_disk import PackedDataset

__all__ = ["Steps", "noted", "read", "run", "whole"]

#: (dataset, epoch, number) of each pack that was read
read: list[tuple[Any, int, int]] = []
_read = PackedDataset.__getitem__


def _noted(self: Any, index: int | tuple[int, int]) -> Any:
    epoch, number = index if isinstance(index, tuple) else (0, index)
    read.append((self, epoch, number))
    return _read(self, index)


PackedDataset.__getitem__ = _noted  # type: ignore[method-assign]


class Steps:
    """What each step's loss is to be: the packs that were read, in turn, as single samples.

    Args:
        plain: a model of transformers that nothing of the trainer has touched.
    """

    def __init__(self, plain: Any):
        self._plain = plain.eval()
        self._done = 0

    @classmethod
    def like(cls, model: Any) -> "Steps":
        """Make them with an unguarded copy of a model."""
        return cls(type(model)(copy.deepcopy(model.config)))

    @torch.no_grad()
    def begin(self, weights: dict[str, Any], num: int) -> None:
        """Note the loss of the next `num` packs of each rank at these weights."""
        self._plain.load_state_dict(weights)
        packs = read[self._done : self._done + num]
        assert len(packs) == num
        total = of_all_ranks(alone(self._plain, packs[0][0], [row[1:] for row in packs]))
        noted["expected"].append(float(total[0] / total[1]))
        self._done += num


def whole(model: Any) -> dict[str, Any]:
    """Return copies of the weights of a model, whose shards lie on several ranks."""
    return {name: getattr(value, "full_tensor", value.clone)() for name, value in model.state_dict().items()}


def run() -> None:
    """Run the program that the command line names, and write what was noted."""
    out = Path(sys.argv[1])
    sys.argv = sys.argv[2:]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as ended:  # torchtune's recipes end so
        if ended.code:
            raise
    if int(os.environ.get("RANK", "0")) == 0:
        out.write_text(json.dumps(noted))
