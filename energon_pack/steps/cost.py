"""Estimate a sample's cost in a training step: forward FLOPs of the language model and of the vision encoder.

    config.json of the model ──cost_model──► CostModel ──lm_flops, vision_flops──► FLOPs of each sample

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

Config = Mapping[str, Any]


def derive_language_flops_coefficients(model_config: Config) -> dict[str, Any]:
    """Return the coefficients of a language model's forward FLOPs: the fields `lm_*` and `window` of `CostModel`."""
    text = _text_config(model_config)
    layers, hidden = _first_size(text, "num_hidden_layers", "n_layer"), _hidden_size(text)
    kinds = [str(kind).partition("_")[0] for kind in text.get("layer_types") or ()]
    window = float(text.get("sliding_window") or text.get("attention_chunk_size") or 0)
    num_linear = kinds.count("linear")
    num_windowed = kinds.count("sliding") + kinds.count("chunked") if window else 0
    weights, heads = _attention_costs(text, hidden)
    linear = _linear_attention_weights(text, hidden) if num_linear else 0.0
    mlps = _mlp_weights(text, hidden, layers) + hidden * _first_size(text, "vocab_size")
    return {
        "lm_token": 2 * ((layers - num_linear) * weights + num_linear * linear + mlps),
        "lm_square": heads * (layers - num_linear - num_windowed),
        "lm_window": heads * num_windowed,
        "window": window if num_windowed else 0,
    }


def vision_coefficients(config: Config) -> dict[str, Any]:
    """Return the coefficients of the forward FLOPs of vision encoder and projector, by the model's config.json.

    The keys are `vision_token`, `vision_square` and `tile` of `CostModel`: 0, 0 and None without a vision encoder.
    """
    config = config.get("thinker_config") or config
    vision = config.get("vision_config") or config.get("visual")
    if not vision:
        return {"vision_token": 0.0, "vision_square": 0.0, "tile": None}
    width, depth = _first_size(vision, "embed_dim", "hidden_size"), _first_size(vision, "depth", "num_hidden_layers")
    kind = str(vision.get("model_type"))
    # GLM-4V's encoder takes this size from another setting.
    glm = vision.get("out_hidden_size") if kind.startswith("glm4v") else None
    inner = glm or vision.get("intermediate_size") or width * (vision.get("mlp_ratio") or 4)
    num_matrices = 3 if kind == "pixtral" or vision.get("hidden_act") == "silu" else 2  # gated
    patch, whole = _first_size(vision, "patch_size"), _first_size(vision, "image_size", default=0)
    merged, hidden = _patches_of_token(vision, config, (whole / patch) ** 2), _hidden_size(_text_config(config))
    window, full = vision.get("window_size") or 0, vision.get("fullatt_block_indexes")
    num_windowed = depth - len(full) if window and full is not None else 0
    in_windows = num_windowed * 4 * width * (window / patch) ** 2
    layers = 2 * depth * width * (4 * width + num_matrices * inner)
    # An encoder that merges neighbours itself takes images of any size; others take tiles of one size.
    of_any_size = "spatial_merge_size" in vision or not whole
    return {
        "vision_token": merged * (layers + in_windows) + 2 * hidden * (merged * width + hidden),
        "vision_square": 4 * width * merged**2 * (depth - num_windowed),
        "tile": None if of_any_size else (whole / patch) ** 2 / merged,
    }


def find_context_len(model_config: Config) -> int | None:
    """Return the context length of a model in tokens, `max_position_embeddings`; None: its config does not say."""
    number = _text_config(model_config).get("max_position_embeddings")
    return number if isinstance(number, int) and not isinstance(number, bool) and number > 0 else None


def _text_config(config: Config) -> Config:
    config = config.get("thinker_config") or config
    nested = (config.get(name) for name in ("text_config", "llm_config", "language_config"))
    return next((part for part in nested if part), config)


def _hidden_size(text: Config) -> float:
    return _first_size(text, "hidden_size", "n_embd")


def _attention_costs(text: Config, hidden: float) -> tuple[float, float]:
    """Return how many attention weights a layer has, and its FLOPs per len²; the mask hides half of the pairs."""
    heads = _first_size(text, "num_attention_heads", "n_head", default=hidden / 128)  # Gemma 3's config lacks this size
    if latent := text.get("kv_lora_rank"):  # DeepSeek's latent attention
        rope, value = text["qk_rope_head_dim"], text["v_head_dim"]
        plain, rank = text["qk_nope_head_dim"], text.get("q_lora_rank")
        queries = (hidden + heads * (plain + rope)) * rank if rank else hidden * heads * (plain + rope)
        keys = hidden * (latent + rope) + latent * heads * (plain + value)
        return queries + keys + heads * value * hidden, heads * (plain + rope + value)
    width = text.get("head_dim") or hidden / heads
    groups = text.get("num_key_value_heads") or heads
    # Qwen 3.5 has a gate as wide as the queries.
    gate = heads if text.get("attn_output_gate") or "linear_num_value_heads" in text else 0
    return hidden * width * (2 * heads + 2 * groups + gate), 2 * heads * width


def _linear_attention_weights(text: Config, hidden: float) -> float:
    """Return the number of weights of a linear-attention layer (a gated delta net), which has no len² term."""
    keys = text["linear_num_key_heads"] * text["linear_key_head_dim"]
    values = text["linear_num_value_heads"] * text["linear_value_head_dim"]
    weights: float = hidden * (2 * keys + 3 * values)
    return weights


def _mlp_weights(text: Config, hidden: float, layers: float) -> float:
    """Return how many MLP weights a token passes in all layers together; each MLP or expert has three matrices."""
    experts = _first_size(text, "num_experts", "n_routed_experts", "num_local_experts", default=0)
    taken = _first_size(text, "num_experts_per_tok", "num_experts_per_token", "experts_per_token", default=0)
    if not experts or not taken:
        return layers * 3 * hidden * _first_size(text, "intermediate_size")
    width = _first_size(text, "moe_intermediate_size", "intermediate_size")
    shared = text.get("shared_expert_intermediate_size") or width * (text.get("n_shared_experts") or 0)
    num_dense = text.get("first_k_dense_replace") or len(text.get("mlp_only_layers") or ())
    dense = 3 * hidden * _first_size(text, "intermediate_size", default=width)
    return num_dense * dense + (layers - num_dense) * hidden * (3 * (taken * width + shared) + experts)


def _patches_of_token(vision: Config, config: Config, in_tile: float) -> float:
    """Return how many patches of the vision encoder are merged into one token of the language model."""
    for place in (vision, config):
        for name in ("spatial_merge_size", "scale_factor", "merge_kernel_size", "pooling_kernel_size"):
            if place.get(name):
                return _first_size(place, name) ** 2
        for name in ("downsample_ratio", "pixel_shuffle_ratio"):
            if place.get(name):
                return 1 / _first_size(place, name) ** 2
    tokens = _first_size(config, "mm_tokens_per_image", "image_seq_length", default=0)
    return in_tile / tokens if tokens and in_tile else 1.0


def _first_size(config: Config, *names: str, default: float | None = None) -> float:
    """Return the size under the first of these names that the config has; for [height, width], the height."""
    value = next((config[name] for name in names if config.get(name) is not None), default)
    if value is None:
        raise KeyError(" or ".join(names))
    return float(value[0] if isinstance(value, (list, tuple)) else value)


Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[Any]

#: assumed visual tokens of a frame if a sample has only videos: lengths do not record the number of frames
TOKENS_PER_FRAME = 256
#: costs if a config lacks a size: the weights of a common 7B model
_DEFAULT_CONFIG = {
    "text_config": {
        "hidden_size": 3584, "num_hidden_layers": 28, "intermediate_size": 18944, "num_attention_heads": 28,
        "num_key_value_heads": 4, "vocab_size": 152064,
    },
    "vision_config": {"embed_dim": 1280, "depth": 32, "mlp_ratio": 4, "patch_size": 14, "spatial_merge_size": 2},
}  # fmt: skip
_DEFAULT_SOURCE = "28 layers × 3584 and a vision encoder of 32 × 1280, 4 patches a token"


@dataclass(frozen=True)
class CostModel:
    """Coefficients of a model's forward FLOPs for a sample: of its length (weights), and of its square (attention)."""

    #: the file from which the costs come, or why there is no file
    source: str
    #: FLOPs a token: weights
    lm_token: float
    #: factor of len², the square of a sample's tokens: attention
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
    unit: str = "FLOPs"

    def lm_flops(self, lens: Numbers, shared: Numbers | None = None) -> Floats:
        """Return the language model's FLOPs, float64[n], for n samples of `lens` tokens, of which `shared` are free."""
        if shared is not None:
            return self.lm_flops(lens) - self.lm_flops(shared)
        tokens: Floats = lens.astype(np.float64)
        beyond = np.maximum(tokens - self.window, 0.0)
        in_window: Floats = self.lm_window * (tokens**2 - beyond**2)
        return self.lm_token * tokens + self.lm_square * tokens**2 + in_window

    def vision_flops(self, visual_tokens: Numbers, num_images: Numbers) -> Floats:
        """Return the vision encoder's FLOPs, float64[n], for n samples with so many visual tokens and images.

        A sample's tokens are spread evenly over its images; without images, over frames of `TOKENS_PER_FRAME`.
        """
        tokens: Floats = visual_tokens.astype(np.float64)
        attended: Floats = tokens / np.where(num_images > 0, num_images, np.maximum(tokens / TOKENS_PER_FRAME, 1.0))
        return tokens * (self.vision_token + self.vision_square * np.minimum(attended, self.tile or np.inf))

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a dict, which the manifest of a packed dataset stores as JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "CostModel":
        """Make a CostModel from `to_json`'s result."""
        return cls(**value)


def cost_model_or_default(folder: Path | None) -> CostModel:
    """Return the cost model by `config.json` in a folder; if it or a size in it is missing, that of a 7B model."""
    path = folder / "config.json" if folder else None
    if path is None or not path.is_file():
        return cost_model_from_config(_DEFAULT_CONFIG, f"no config.json: {_DEFAULT_SOURCE}")
    try:
        return cost_model_from_config(json.loads(path.read_text()), path.name)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        return cost_model_from_config(
            _DEFAULT_CONFIG, f"{path.name} does not say {' '.join(str(error).split())}: {_DEFAULT_SOURCE}"
        )


def read_context_len(processor_folder: Path) -> int | None:
    """Return the context length in tokens by the `config.json` in a processor's folder; None: it is not known."""
    try:
        return find_context_len(json.loads((processor_folder / "config.json").read_text()))
    except (OSError, AttributeError, ValueError):
        return None


def cost_model_from_config(config: Mapping[str, Any], source: str) -> CostModel:
    """Return the cost model for a model's config.json, which `source` names; raise an error if a size is missing."""
    model = CostModel(source, **derive_language_flops_coefficients(config), **vision_coefficients(config))
    costs = [model.lm_token, model.lm_square, model.lm_window, model.window, model.vision_token, model.vision_square]
    if not all(0 <= cost < math.inf for cost in [*costs, model.tile or 0.0]):
        raise ValueError("sizes of a model")
    return model
