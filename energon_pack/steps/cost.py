"""Estimate a sample's cost in a training step: forward FLOPs of the language model and of the encoders of media.

    config.json of the model ──cost_model──► CostModel ──lm, vision, audio──► FLOPs of each sample

In each of them the backward pass costs about twice the forward pass, so forward FLOPs show how ranks share a step.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_pack.steps.weights import audio_of, language_of, positions_of, vision_of

Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[Any]

#: assumed visual tokens of a frame if a sample has only videos: lengths do not record the number of frames
FRAME = 256
#: costs if a config lacks a size: the weights of a common 7B model
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
    """FLOPs of a sample: its tokens pass the weights, and attention compares them."""

    #: the file from which the costs come, or why there is no file
    source: str
    #: FLOPs a token: weights
    lm_token: float
    #: factor of len²: attention
    lm_square: float
    #: FLOPs a visual token: all its patches, and the projector
    vision_token: float
    #: factor of (visual tokens of an image)²: attention
    vision_square: float
    #: factor of len² - (len - window)²: attention in layers with a sliding window
    lm_window: float = 0.0
    #: tokens of the sliding window
    window: float = 0.0
    #: visual tokens of a tile, within which they attend to each other; None: they attend to the whole image
    tile: float | None = None
    #: FLOPs an audio token, and FLOPs a sound if the encoder pads sounds to one length
    audio_token: float = 0.0
    audio_sound: float = 0.0
    unit: str = "FLOPs"

    def lm(self, lens: Numbers, shared: Numbers | None = None) -> Floats:
        """Return the language model's FLOPs, float64[n], for n samples of `lens` tokens.

        Args:
            shared: number of first tokens that another sample of the pack has computed; None: nothing is shared.
        """
        if shared is not None:
            return self.lm(lens) - self.lm(shared)
        tokens: Floats = lens.astype(np.float64)
        beyond = np.maximum(tokens - self.window, 0.0)
        in_window: Floats = self.lm_window * (tokens**2 - beyond**2)
        return self.lm_token * tokens + self.lm_square * tokens**2 + in_window

    def vision(self, visual_tokens: Numbers, num_images: Numbers) -> Floats:
        """Return the vision encoder's FLOPs, float64[n]; visual tokens are spread evenly over images, or `FRAME`s."""
        tokens: Floats = visual_tokens.astype(np.float64)
        attended: Floats = tokens / np.where(num_images > 0, num_images, np.maximum(tokens / FRAME, 1.0))
        return tokens * (self.vision_token + self.vision_square * np.minimum(attended, self.tile or np.inf))

    def audio(self, audio_tokens: Numbers, num_sounds: Numbers) -> Floats:
        """Return the audio encoder's FLOPs, float64[n]; sounds of videos count as tokens, not as sounds."""
        tokens: Floats = audio_tokens.astype(np.float64)
        return self.audio_token * tokens + self.audio_sound * num_sounds

    def to_json(self) -> dict[str, Any]:
        """Return the form that a manifest holds; without an audio encoder it has no fields for one."""
        values = asdict(self)
        return {name: value for name, value in values.items() if value or not name.startswith("audio_")}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "CostModel":
        """Make a CostModel from `to_json`'s result."""
        return cls(**value)


def cost_model(folder: Path | None) -> CostModel:
    """Return the costs by `config.json` of a processor's folder; if a size is missing, by default weights."""
    path = folder / "config.json" if folder else None
    if path is None or not path.is_file():
        return cost_by(_DEFAULT, f"no config.json: {_DEFAULT_NAME}")
    try:
        return cost_by(json.loads(path.read_text()), path.name)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        return cost_by(_DEFAULT, f"{path.name} does not say {' '.join(str(error).split())}: {_DEFAULT_NAME}")


def most_positions(folder: Path) -> int | None:
    """Return how many positions the model of a processor's folder has; None: no config.json says how many."""
    try:
        return positions_of(json.loads((folder / "config.json").read_text()))
    except (OSError, AttributeError, ValueError):
        return None


def cost_by(config: Mapping[str, Any], source: str) -> CostModel:
    """Return the costs by the sizes of a model.

    Args:
        config: the content of a Hugging Face config.json.

    Raises:
        KeyError: a size is missing under all its names.
        ValueError: a size is not a positive number.
    """
    made = CostModel(source, **language_of(config), **vision_of(config), **audio_of(config))
    costs = [made.lm_token, made.lm_square, made.lm_window, made.window, made.vision_token, made.vision_square]
    costs += [made.audio_token, made.audio_sound]
    if not all(0 <= cost < math.inf for cost in [*costs, made.tile or 0.0]):
        raise ValueError("sizes of a model")
    return made
