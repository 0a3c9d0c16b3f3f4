"""What a sample costs a training step: forward FLOPs of the language model and of the vision encoder.

    config.json of the model ──cost_model──► CostModel ──lm, vision──► FLOPs of each sample

Backward takes about twice as much again of both, so the shares of ranks in a step are those of forward alone.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_pack.steps.weights import language_of, positions_of, vision_of

Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[Any]

#: visual tokens of a frame, where a sample has videos alone: how many frames they have is not measured
FRAME = 256
#: that costs are of where a config does not say all: the weights of a common model of 7B
_DEFAULT = {
    "text_config": {
        "hidden_size": 3584, "num_hidden_layers": 28, "intermediate_size": 18944, "num_attention_heads": 28,
        "num_key_value_heads": 4, "vocab_size": 152064,
    },
    "vision_config": {"embed_dim": 1280, "depth": 32, "mlp_ratio": 4, "patch_size": 14, "spatial_merge_size": 2},
}  # fmt: skip
_DEFAULT_NAME = "28 layers × 3584 and a vision encoder of 32 × 1280, 4 patches a token"


@dataclass(frozen=True)
class CostModel:
    """Costs of a sample: of its tokens, and of what attends what in it."""

    #: which file says so, or why none does
    source: str
    #: FLOPs of a token: weights
    lm_token: float
    #: FLOPs of len²: attention
    lm_square: float
    #: FLOPs of a visual token, all its patches and the projector
    vision_token: float
    #: FLOPs of (visual tokens)² of an image
    vision_square: float
    #: FLOPs of len² - (len - window)²: attention in layers with a sliding window
    lm_window: float = 0.0
    #: tokens
    window: float = 0.0
    #: visual tokens that attend each other at most: those of a tile; None: of the whole image
    tile: float | None = None
    unit: str = "FLOPs"

    def lm(self, lens: Numbers) -> Floats:
        """Of the language model, float64[n] for n samples of `lens` tokens."""
        tokens: Floats = lens.astype(np.float64)
        beyond = np.maximum(tokens - self.window, 0.0)
        in_window: Floats = self.lm_window * (tokens**2 - beyond**2)
        return self.lm_token * tokens + self.lm_square * tokens**2 + in_window

    def vision(self, visual_tokens: Numbers, num_images: Numbers) -> Floats:
        """Of the vision encoder, float64[n]: visual tokens lie evenly over the images, or over frames of `FRAME`."""
        tokens: Floats = visual_tokens.astype(np.float64)
        attended: Floats = tokens / np.where(num_images > 0, num_images, np.maximum(tokens / FRAME, 1.0))
        return tokens * (self.vision_token + self.vision_square * np.minimum(attended, self.tile or np.inf))

    def to_json(self) -> dict[str, Any]:
        """As it stands in a manifest."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "CostModel":
        """What `to_json` gave."""
        return cls(**value)


def cost_model(folder: Path | None) -> CostModel:
    """Costs by `config.json` of a processor's folder, or by default weights where there is none that says all."""
    path = folder / "config.json" if folder else None
    if path is None or not path.is_file():
        return cost_by(_DEFAULT, f"no config.json: {_DEFAULT_NAME}")
    try:
        return cost_by(json.loads(path.read_text()), path.name)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        return cost_by(_DEFAULT, f"{path.name} does not say {' '.join(str(error).split())}: {_DEFAULT_NAME}")


def most_positions(folder: Path) -> int | None:
    """Tokens of a sample for which the model of a processor's folder has positions; None: no config.json says it."""
    try:
        return positions_of(json.loads((folder / "config.json").read_text()))
    except (OSError, AttributeError, ValueError):
        return None


def cost_by(config: Mapping[str, Any], source: str) -> CostModel:
    """Costs by the sizes of a model.

    Args:
        config: as config.json of Hugging Face; families call the same by several names.

    Raises:
        KeyError: it does not say a size, by none of the names.
        ValueError: what it says is no size of a model.
    """
    made = CostModel(source, **language_of(config), **vision_of(config))
    costs = [made.lm_token, made.lm_square, made.lm_window, made.window, made.vision_token, made.vision_square]
    if not all(0 <= cost < math.inf for cost in [*costs, made.tile or 0.0]):
        raise ValueError("sizes of a model")
    return made
