"""Shrink a config to few and small layers, and let its RoPE change with length within a few tokens."""

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from energon_pack.training.model_wrappers import configs_in

#: names that configs use for the number of layers or blocks
_LAYER_NAMES = re.compile(
    r"(num_(hidden_|encoder_|decoder_)?|n_)layers?|num_blocks|(encoder|decoder)_layers|(resampler_)?depth"
)
_HEAD_NAMES = re.compile(r"((num|n)_((encoder|decoder)_)?(attention_)?|(encoder_|decoder_)?attention_)heads?")
_MORE_HEAD_NAMES = re.compile(r"\w*heads(_per_layer)?|(num|n)_(\w+_)?head|\w*(kv|n)_groups")
_WIDTH_NAMES = ("embed_dim", "hidden_size", "d_model", "n_embd", "emb_dim", "hidden_dim", "dim", "mm_embed_dim")
#: names of sizes that are a multiple of the width in some configs, and must stay one
_WIDTH_MULTIPLE_NAMES = re.compile(r"\w*(hidden|width|dim|inner|embed|intermediate|size|ssm)\w*")
_NOT_WIDTH_NAMES = re.compile(
    r"\w*(head_dim|vocab|position|image|patch|window|chunk|kernel|block_|max_|rank|rope|tile|scale|num_|rotary"
    r"|codebook|state|group|dim_per_head|d_head|type_)\w*"
)
#: upper limits of other sizes
_SIZE_LIMITS = {
    "intermediate_size": 96, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
    "expert_ffn_hidden_size": 32, "zero_expert_num": 2, "moe_num_experts": 4, "num_local_experts": 4, "num_experts": 4,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "num_experts_per_token": 2, "moe_k": 2, "moe_topk": 2,
    "n_group": 1, "topk_group": 1, "num_expert_group": 1, "first_k_dense_replace": 1, "num_nextn_predict_layers": 0,
    "alignment_intermediate_size": 96,
}  # fmt: skip
_NUM_HEADS = 2
_MAX_KEPT_HEADS = 4  # few enough to stay
_INDEXER_HEADS = 16  # with fewer heads, an indexer's keys have equal scores, and it picks by their place
_MAX_KEPT_LAYERS = 4  # few enough to stay
_MAX_LAYERS = 8
_MAX_MERGED_PATCHES = 16  # patches in a token
_WIDTH_WITHOUT_HEADS = 256  # width for models without heads


def shrink_layers_and_widths(config: Any) -> None:
    """Shrink a config in place: one layer of each kind, two or more in all, and small widths.

    Vocabulary, special tokens and patches stay.
    """
    text = config.get_text_config()
    widths: dict[int, int] = {}
    foreign = {vars(part)[name] for part in configs_in(config) if (name := _width_name(part))}
    every = sorted(configs_in(config), key=lambda part: part is not text)
    for part in every:
        _shrink_layers(part)
        for name, most in _SIZE_LIMITS.items():
            have = vars(part).get(name)
            if name != "intermediate_size" and isinstance(have, int):
                setattr(part, name, min(most, have))
            elif isinstance(have, list) and have and isinstance(have[0], int):
                setattr(part, name, [min(most, number) for number in have])
        for name, have in list(vars(part).items()):
            if "feature_layer" in name and isinstance(have, (int, list, tuple)) and not isinstance(have, bool):
                setattr(part, name, _limited_layer_indices(have))
        for old, new in _shrink_width(part, foreign - {vars(part).get(_width_name(part) or "")}).items():
            widths.setdefault(old, new)
    for part in every:
        width_name = _width_name(part)
        for name, value in list(vars(part).items()):
            if name != width_name and type(value) is int and value > 0 and _is_width_name(name):
                setattr(part, name, _narrowed_size(value, widths, part is config))
        for name in ("out_hidden_size", *(("hidden_size",) if width_name == "embed_dim" else ())):
            if vars(part).get(name) and part is not config:
                setattr(part, name, text.hidden_size)


def _narrowed_size(value: int, widths: dict[int, int], may_be_multiple: bool) -> int:
    """Return a size's new value if it is another part's width, or a multiple of one in the outermost config."""
    if value in widths:
        return widths[value]
    for old, new in widths.items() if may_be_multiple else ():
        if value % old == 0 and value // old <= _MAX_MERGED_PATCHES:
            return value // old * new
    return value


def _shrink_layers(part: Any) -> None:
    """Keep one layer of each kind, at least two; shorten lists with an entry for each layer in the same way."""
    for name, number in list(vars(part).items()):
        if not _LAYER_NAMES.fullmatch(name) or not isinstance(number, int) or number <= _MAX_KEPT_LAYERS:
            continue
        lists = {k: v for k, v in vars(part).items() if isinstance(v, (list, tuple)) and len(v) == number}
        first_shared = number - (vars(part).get("num_kv_shared_layers") or 0)
        rows = [(i >= first_shared, *row) for i, row in enumerate(zip(*lists.values(), strict=True))]
        kept = _first_index_of_each(rows) if rows else [0, 1]
        if first_shared < number:
            part.num_kv_shared_layers = sum(i >= first_shared for i in kept)
        kinds = _layer_kinds(part, number)
        setattr(part, name, len(kept))
        for key, value in lists.items():
            setattr(part, key, type(value)(value[i] for i in kept))
        while not lists and len(kept) < min(number, _MAX_LAYERS) and _layer_kinds(part, len(kept)) != kinds:
            kept.append(len(kept))
            setattr(part, name, len(kept))
        for key, value in list(vars(part).items()):
            if key not in lists and _is_layer_indices(key, value, number):
                setattr(part, key, [kept.index(i) for i in value if i in kept] or [len(kept) - 1])


def _limited_layer_indices(layers: int | Sequence[int]) -> int | list[int]:
    """Limit layer indices to the range [-2, 1] that two layers have."""
    return max(-2, min(1, layers)) if isinstance(layers, int) else [max(-2, min(1, i)) for i in layers]


def _first_index_of_each(rows: list[Any]) -> list[int]:
    kept = sorted({repr(row): i for i, row in reversed(list(enumerate(rows)))}.values())[:_MAX_LAYERS]
    return kept if len(kept) > 1 else [0, 1]


def _layer_kinds(part: Any, number: int) -> dict[str, set[str]]:
    """Return the kinds of layers that a config derives in properties: the different values by property name."""
    names = [name for name in dir(type(part)) if isinstance(getattr(type(part), name, None), property)]
    values = {name: getattr(part, name, None) for name in names if "layer" in name}
    return {k: set(map(str, v)) for k, v in values.items() if isinstance(v, (list, tuple)) and len(v) == number}


def _is_layer_indices(name: str, value: Any, number: int) -> bool:
    return (
        isinstance(value, (list, tuple))
        and 0 < len(value) < number
        and all(type(i) is int and 0 <= i < number for i in value)
        and any(word in name for word in ("layer", "index", "idx"))
    )


def _width_name(part: Any) -> str | None:
    return next((name for name in _WIDTH_NAMES if isinstance(vars(part).get(name), int)), None)


def _is_width_name(name: str) -> bool:
    return bool(_WIDTH_MULTIPLE_NAMES.fullmatch(name)) and not _NOT_WIDTH_NAMES.fullmatch(name)


def _shrink_width(part: Any, foreign: set[int]) -> dict[int, int]:
    """Keep few heads of their old size, so that rotary sections fit; return the new width by the old one."""
    names = [k for k, v in vars(part).items() if _HEAD_NAMES.fullmatch(k) and type(v) is int and v > 0]
    name = _width_name(part)
    if not name:
        return {}
    width = vars(part)[name]
    heads = vars(part)[names[0]] if names else max(1, width // _WIDTH_WITHOUT_HEADS * _NUM_HEADS)
    if heads <= _MAX_KEPT_HEADS:
        return {}
    common = math.gcd(heads, width)
    factor = max((f for f in range(1, common + 1) if common % f == 0 and heads // f >= _NUM_HEADS), default=common)
    new = width // factor
    if isinstance(vars(part).get("head_dim"), int) and new % 16 and names:
        new = heads // factor * vars(part)["head_dim"]
    for key, value in list(vars(part).items()):
        if isinstance(value, list) and _MORE_HEAD_NAMES.fullmatch(key):
            setattr(part, key, [max(1, number // factor) for number in value])
        elif type(value) is not int:
            continue
        elif key != name and _MORE_HEAD_NAMES.fullmatch(key):
            few = _INDEXER_HEADS if "index" in key and value >= _INDEXER_HEADS else 1
            setattr(part, key, max(few, value // factor))
        elif key == name or (_is_width_name(key) and value and value % width == 0 and value not in foreign):
            setattr(part, key, value // width * new)
        elif key == "intermediate_size":
            setattr(part, key, min(value, _SIZE_LIMITS[key]))
    for key in ("num_key_value_heads", "num_kv_heads"):
        if names and type(vars(part).get(key)) is int and vars(part)[names[0]] % vars(part)[key]:
            setattr(part, key, 1)
    return {width: new}


#: standard deviation of random weights: with the 0.02 of most configs, a leak between members would hardly show
_INITIALIZER_RANGE = 0.1
#: kinds of RoPE whose angles depend on the longest position of a batch, and so on other members
_LENGTH_ROPE_TYPES = ("dynamic", "longrope")
_SHORT_ROPE_LEN = 12


def shrink_config(config: Any, longest_pack_len: int | None = None) -> Any:
    """Shrink a config in place to few and small layers, and return it; vocabulary, special tokens and patches stay.

    Args:
        config: a config of transformers.
        longest_pack_len: tokens of the longest pack; None: any length. Some RoPE changes for texts longer than the
            model was trained for. If packs can be that long, it changes here within members of a few tokens.
    """
    shrink_layers_and_widths(config)
    for part in configs_in(config):
        if isinstance(getattr(part, "initializer_range", None), float):
            part.initializer_range = max(_INITIALIZER_RANGE, part.initializer_range)
        for rope in _rope_settings(getattr(part, "rope_parameters", None)):
            _shorten_rope(rope, part, longest_pack_len)
    return config


def _rope_settings(parameters: Any) -> Iterator[dict[str, Any]]:
    """Yield the RoPE settings of a config; some configs have them for each kind of layer."""
    if isinstance(parameters, dict):
        if "rope_type" in parameters:
            yield parameters
        for value in parameters.values():
            yield from _rope_settings(value)


def _shorten_rope(rope: dict[str, Any], part: Any, longest: int | None) -> None:
    if rope.get("rope_type") not in _LENGTH_ROPE_TYPES:
        return
    trained = rope.get("original_max_position_embeddings") or getattr(part, "max_position_embeddings", None)
    if longest is not None and trained is not None and longest <= trained:
        return
    rope["original_max_position_embeddings"] = _SHORT_ROPE_LEN
    if rope["rope_type"] == "dynamic":
        part.max_position_embeddings = _SHORT_ROPE_LEN
    if hasattr(part, "original_max_position_embeddings"):
        part.original_max_position_embeddings = _SHORT_ROPE_LEN
