"""Tiny models of the classes that hear videos."""

from collections.abc import Callable
from typing import Any

from support.tiny import TEXT, tf

_VISION: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 16,
    "out_hidden_size": 32,
    "intermediate_size": 24,
    "num_heads": 2,
}
_VISION |= {"initializer_range": 0.2}
_AUDIO = {"num_mel_bins": 8, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 24, "d_model": 16}


def _text(**rope: Any) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2], **rope}
    return {**TEXT, "vocab_size": 320, "head_dim": 8, "rope_parameters": rope}


def _ids(token: Callable[[str], int], media: Callable[[str], str]) -> dict[str, int]:
    names = {f"{kind}_token_id": media(kind) for kind in ("image", "video", "audio")}
    for kind in ("vision", "audio"):
        names |= {f"{kind}_start_token_id": f"<|{kind}_bos|>", f"{kind}_end_token_id": f"<|{kind}_eos|>"}
    return {name: token(spelled) for name, spelled in names.items()}


def qwen2_5_omni(token: Callable[[str], int]) -> Any:
    """A config.

    Args:
        token: finds the ids of tokens.
    """
    return tf.Qwen2_5OmniThinkerConfig(
        text_config=_text(), vision_config={**_VISION, "fullatt_block_indexes": [1]},
        audio_config={**_AUDIO, "output_dim": 32}, initializer_range=0.2,
        **_ids(token, lambda kind: f"<|{kind.upper()}|>"),
    )  # fmt: skip


def qwen3_omni(token: Callable[[str], int]) -> Any:
    """A config; as `qwen2_5_omni`."""
    vision = {**_VISION, "patch_size": 16, "deepstack_visual_indexes": [0], "num_position_embeddings": 16}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "decoder_sparse_step": 1}
    return tf.Qwen3OmniMoeThinkerConfig(
        text_config={**_text(mrope_interleaved=True), **experts}, vision_config=vision, initializer_range=0.2,
        audio_config={**_AUDIO, "output_dim": 32, "downsample_hidden_size": 8},
        **_ids(token, lambda kind: f"<|{kind}_pad|>"),
    )  # fmt: skip
