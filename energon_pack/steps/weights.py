"""Derive costs from a model's config.json: the weights that a token passes, and the pairs that attention computes.

Model families name the same size differently. The product of a token with n weights costs 2·n FLOPs. Attention has two
products of len × len.
"""

from collections.abc import Mapping
from typing import Any, TypedDict

Config = Mapping[str, Any]
#: audio encoders whose FLOPs are known
_HEARING = ("qwen2_audio_encoder", "qwen2_5_omni_audio_encoder", "qwen3_omni_moe_audio_encoder")


class LanguageCost(TypedDict):
    """Costs of the language model, as fields of `CostModel`."""

    lm_token: float
    lm_square: float
    lm_window: float
    window: float


class VisionCost(TypedDict):
    """Costs of the vision encoder and the projector, as fields of `CostModel`."""

    vision_token: float
    vision_square: float
    tile: float | None


class AudioCost(TypedDict):
    """Costs of the audio encoder and the projector, as fields of `CostModel`."""

    audio_token: float
    audio_sound: float


def language_of(config: Config) -> LanguageCost:
    """Return the FLOPs of the language model.

    Raises:
        KeyError: a size is missing.
    """
    text = _text(config)
    layers, hidden = _size(text, "num_hidden_layers", "n_layer"), _hidden(text)
    kinds = [str(kind).partition("_")[0] for kind in text.get("layer_types") or ()]
    window = float(text.get("sliding_window") or text.get("attention_chunk_size") or 0)
    num_linear = kinds.count("linear")
    num_windowed = kinds.count("sliding") + kinds.count("chunked") if window else 0
    weights, heads = _attention(text, hidden)
    linear = _linear_attention(text, hidden) if num_linear else 0.0
    mlps = _mlps(text, hidden, layers) + hidden * _size(text, "vocab_size")
    return {
        "lm_token": 2 * ((layers - num_linear) * weights + num_linear * linear + mlps),
        "lm_square": heads * (layers - num_linear - num_windowed),
        "lm_window": heads * num_windowed,
        "window": window if num_windowed else 0,
    }


def vision_of(config: Config) -> VisionCost:
    """Return the FLOPs of the vision encoder and the projector.

    Raises:
        KeyError: a size is missing.
    """
    config = config.get("thinker_config") or config
    vision = config.get("vision_config") or config.get("visual")
    if not vision:
        return {"vision_token": 0.0, "vision_square": 0.0, "tile": None}
    width, depth = _size(vision, "embed_dim", "hidden_size"), _size(vision, "depth", "num_hidden_layers")
    kind = str(vision.get("model_type"))
    # GLM-4V's encoder takes this size from another setting.
    glm = vision.get("out_hidden_size") if kind.startswith("glm4v") else None
    inner = glm or vision.get("intermediate_size") or width * (vision.get("mlp_ratio") or 4)
    num_matrices = 3 if kind == "pixtral" or vision.get("hidden_act") == "silu" else 2  # gated
    patch, whole = _size(vision, "patch_size"), _size(vision, "image_size", default=0)
    merged, hidden = _patches_of_token(vision, config, (whole / patch) ** 2), _hidden(_text(config))
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


def audio_of(config: Config) -> AudioCost:
    """Return the FLOPs of the audio encoder and the projector: per token, or per sound if all are padded alike.

    An encoder that is not in `_HEARING` counts as free.

    Raises:
        KeyError: a size is missing.
    """
    config = config.get("thinker_config") or config
    audio = config.get("audio_config") or {}
    kind = str(audio.get("model_type"))
    if kind not in _HEARING:
        return {"audio_token": 0.0, "audio_sound": 0.0}
    width, depth, mel = _size(audio, "d_model"), _size(audio, "encoder_layers"), _size(audio, "num_mel_bins")
    layers = 2 * depth * width * (4 * width + 2 * _size(audio, "encoder_ffn_dim"))  # per position in the encoder
    attention = 4 * depth * width  # per pair of positions
    if kind == "qwen3_omni_moe_audio_encoder":
        frames, inner = 2 * _size(audio, "n_window", default=50), _size(audio, "downsample_hidden_size")
        convolved, places, bands, channels = 0.0, frames, mel, 1.0
        for _ in range(3):  # each convolution halves the frames and the bands
            places, bands = (places + 1) // 2, (bands + 1) // 2
            convolved += 2 * 9 * places * bands * channels * inner
            channels = inner
        attended = places * _size(audio, "n_window_infer", default=800) / frames
        projected = 2 * width * (inner * bands + width + _size(audio, "output_dim"))
        return {"audio_token": layers + attention * attended + convolved / places + projected, "audio_sound": 0.0}
    longest = _size(audio, "max_source_positions")
    is_padded = kind == "qwen2_audio_encoder"
    attended = longest if is_padded else _size(audio, "n_window", default=100)
    projected = 2 * width * (_hidden(_text(config)) if is_padded else _size(audio, "output_dim"))
    # Two positions in the encoder make a token, and four frames make two positions.
    token = 2 * (layers + attention * attended + 6 * width * width) + 4 * 6 * mel * width + projected
    return {"audio_token": 0.0 if is_padded else token, "audio_sound": token * longest / 2 if is_padded else 0.0}


def positions_of(config: Config) -> int | None:
    """Return how many positions a model has; None: its config does not say."""
    number = _text(config).get("max_position_embeddings")
    return number if isinstance(number, int) and not isinstance(number, bool) and number > 0 else None


def _text(config: Config) -> Config:
    """Return the part of a config that describes the language model."""
    config = config.get("thinker_config") or config
    nested = (config.get(name) for name in ("text_config", "llm_config", "language_config"))
    return next((found for found in nested if found), config)


def _hidden(text: Config) -> float:
    return _size(text, "hidden_size", "n_embd")


def _attention(text: Config, hidden: float) -> tuple[float, float]:
    """Return the attention weights of a layer, and its FLOPs per len²; the mask hides half of the pairs."""
    heads = _size(text, "num_attention_heads", "n_head", default=hidden / 128)  # Gemma 3's config lacks this size
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


def _linear_attention(text: Config, hidden: float) -> float:
    """Return the weights of a layer whose attention has no len² term: a gated delta net."""
    keys = text["linear_num_key_heads"] * text["linear_key_head_dim"]
    values = text["linear_num_value_heads"] * text["linear_value_head_dim"]
    weights: float = hidden * (2 * keys + 3 * values)
    return weights


def _mlps(text: Config, hidden: float, layers: float) -> float:
    """Return the weights that a token passes in the MLPs of all layers; each MLP has three matrices."""
    experts = _size(text, "num_experts", "n_routed_experts", "num_local_experts", default=0)
    taken = _size(text, "num_experts_per_tok", "num_experts_per_token", "experts_per_token", default=0)
    if not experts or not taken:
        return layers * 3 * hidden * _size(text, "intermediate_size")
    width = _size(text, "moe_intermediate_size", "intermediate_size")
    shared = text.get("shared_expert_intermediate_size") or width * (text.get("n_shared_experts") or 0)
    num_dense = text.get("first_k_dense_replace") or len(text.get("mlp_only_layers") or ())
    dense = 3 * hidden * _size(text, "intermediate_size", default=width)
    return num_dense * dense + (layers - num_dense) * hidden * (3 * (taken * width + shared) + experts)


def _patches_of_token(vision: Config, config: Config, in_tile: float) -> float:
    """Return how many patches of the encoder become one token of the language model."""
    for place in (vision, config):
        for name in ("spatial_merge_size", "scale_factor", "merge_kernel_size", "pooling_kernel_size"):
            if place.get(name):
                return _size(place, name) ** 2
        for name in ("downsample_ratio", "pixel_shuffle_ratio"):
            if place.get(name):
                return 1 / _size(place, name) ** 2
    tokens = _size(config, "mm_tokens_per_image", "image_seq_length", default=0)
    return in_tile / tokens if tokens and in_tile else 1.0


def _size(config: Config, *names: str, default: float | None = None) -> float:
    """Return the size under the first of these names that the config has; for [height, width], the height."""
    value = next((config[name] for name in names if config.get(name) is not None), default)
    if value is None:
        raise KeyError(" or ".join(names))
    return float(value[0] if isinstance(value, (list, tuple)) else value)
