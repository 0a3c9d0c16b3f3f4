"""A small model of a class: few and narrow layers of the same kinds, with its own vocabulary and media."""

import copy
from collections.abc import Iterator
from typing import Any

import torch

#: sizes of a shrunk model, by the names configs have for them
_SMALL = {
    "num_hidden_layers": 2, "depth": 2, "num_key_value_heads": 2, "intermediate_size": 96,
    "num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
    # shorter than members are, so that what they hide is hidden
    "sliding_window": 8, "attention_chunk_size": 8,
}  # fmt: skip
_HEADS = 2
#: of random weights: with the 0.02 of most configs, what leaks would hardly show
_INITIALIZER_RANGE = 0.1
#: of each token: all 150,000 would take gigabytes, and say the same
_NUM_LOGITS = 256
#: RoPE whose angles depend on the longest position of a batch, and so on other members
_BY_LENGTH = ("dynamic", "longrope")
_SHORT = 12


def small_model(make: Any, config: Any, attention: str | None = None, longest: int | None = None) -> Any:
    """A random small model, in float32 where its attention has it: in bfloat16, packed and alone differ by rounding.

    Args:
        make: its class.
        config: of the full size; it stays as it is.
        attention: attention implementation; None: the class's own choice.
        longest: tokens of the longest pack; see `shrink`.
    """
    small = shrink(copy.deepcopy(config), longest)
    chosen = {"attn_implementation": attention} if attention else {}
    with torch.random.fork_rng():  # the user's own seed stays
        torch.manual_seed(0)
        model = (
            make._from_config(small, dtype=torch.float32, **chosen) if hasattr(make, "_from_config") else make(small)
        )
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if isinstance(head, torch.nn.Linear):
        head.weight = torch.nn.Parameter(head.weight[:_NUM_LOGITS])
        head.bias = None if head.bias is None else torch.nn.Parameter(head.bias[:_NUM_LOGITS])
    return (model.bfloat16() if attention and "flash" in attention else model.float()).eval()


def shrink(config: Any, longest: int | None = None) -> Any:
    """A config of the same class with few and small layers; vocabulary, special tokens and patches stay.

    Args:
        config: of transformers; it is changed.
        longest: tokens of the longest pack: RoPE that changes for longer texts than a model was trained for changes
            here for members of a few tokens, unless packs are shorter than that; None: they may be of any length.
    """
    text = config.get_text_config()
    for part in [text, config, *(getattr(config, name, None) for name in config.sub_configs)]:
        if part is None:
            continue
        for name, value in _SMALL.items():
            if isinstance(getattr(part, name, None), int):
                setattr(part, name, min(value, getattr(part, name)))
        if isinstance(getattr(part, "initializer_range", None), float):
            part.initializer_range = max(_INITIALIZER_RANGE, part.initializer_range)
        for rope in _ropes(getattr(part, "rope_parameters", None)):
            _shorten(rope, part, longest)
        _shrink_width(part, text)
        if vars(part).get("layer_types"):  # in some configs it follows from other settings
            kinds = list(dict.fromkeys(part.layer_types))
            part.layer_types = (kinds * 2)[: max(2, len(kinds))]
            part.num_hidden_layers = len(part.layer_types)
        for name in ("fullatt_block_indexes", "deepstack_visual_indexes"):
            if getattr(part, name, None):
                setattr(part, name, [1])
    return config


def _ropes(parameters: Any) -> Iterator[dict[str, Any]]:
    """The settings of RoPE of a config, which some have by the kind of layer."""
    if isinstance(parameters, dict):
        if "rope_type" in parameters:
            yield parameters
        for value in parameters.values():
            yield from _ropes(value)


def _shorten(rope: dict[str, Any], part: Any, longest: int | None) -> None:
    if rope.get("rope_type") not in _BY_LENGTH:
        return
    trained = rope.get("original_max_position_embeddings") or getattr(part, "max_position_embeddings", None)
    if longest is not None and trained is not None and longest <= trained:
        return
    rope["original_max_position_embeddings"] = _SHORT
    if rope["rope_type"] == "dynamic":
        part.max_position_embeddings = _SHORT
    if hasattr(part, "original_max_position_embeddings"):
        part.original_max_position_embeddings = _SHORT


def _shrink_width(part: Any, text: Any) -> None:
    """Two heads of the size they had: rotary sections still fit."""
    heads = next((name for name in ("num_attention_heads", "num_heads") if getattr(part, name, None)), None)
    width = next((name for name in ("embed_dim", "hidden_size") if getattr(part, name, None)), None)
    if heads and width and getattr(part, heads) > _HEADS:
        head_dim = getattr(part, "head_dim", None) or getattr(part, width) // getattr(part, heads)
        setattr(part, width, _HEADS * head_dim)
        setattr(part, heads, _HEADS)
    for name in ("out_hidden_size", *(("hidden_size",) if width == "embed_dim" else ())):
        if getattr(part, name, None):
            setattr(part, name, text.hidden_size)
