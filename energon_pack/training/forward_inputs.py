"""Refuse inputs of a forward with which members of a pack would see each other in any model.

Each of these faults was measured to mix members, and the loss looks normal all the while.
"""

import importlib.util
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.nn import Module

#: name of this package's attention for trees among transformers' implementations
TREE_ATTENTION = "energon_pack_tree"
#: kernels of layers that carry a state: the module to import, the package to install
_KERNEL_PACKAGES = {"fla": "flash-linear-attention", "causal_conv1d": "causal-conv1d"}
_has_rope_rows_by_model: weakref.WeakKeyDictionary[Module, bool] = weakref.WeakKeyDictionary()
#: the mask that was shown to keep members apart, by guarded model
PROVEN_MASKS: weakref.WeakKeyDictionary[Module, str] = weakref.WeakKeyDictionary()


#: the error of a batch with mask `auto` and a model that is not guarded
NOT_GUARDED_ERROR = "mask=auto: guard(model, encoder) finds what the model needs, model_inputs(model) uses it"


class MixingError(ValueError):
    """Members of a pack would see each other, or would have other logits than alone."""


def missing_kernels() -> list[str]:
    """Return the names of the packages with kernels for hybrid models that are not installed here."""
    return [name for module, name in _KERNEL_PACKAGES.items() if importlib.util.find_spec(module) is None]


def refuse_missing_hybrid_kernels() -> None:
    """Raise MixingError if kernels of hybrid models are missing; without them, state leaks between members."""
    if missing := missing_kernels():
        raise MixingError(
            "a hybrid model carries its state from member to member without its kernels:"
            f" pip install {' '.join(missing)}"
        )


def refuse_several_rows(num_rows: int) -> None:
    """Raise MixingError if a batch for a hybrid model has several rows: its kernels take one."""
    if num_rows > 1:
        raise MixingError(f"a hybrid model keeps members apart in one row only, not in {num_rows}: batch_size=1")


def takes_rope_rows(model: Module) -> bool:
    """Say whether a model takes M-RoPE rows as `position_ids`: one of its parts has `get_rope_index`."""
    if model not in _has_rope_rows_by_model:
        _has_rope_rows_by_model[model] = any(hasattr(type(module), "get_rope_index") for module in model.modules())
    return _has_rope_rows_by_model[model]


def attention_implementation_of(model: Any) -> str | None:
    """Return the attention implementation of a model's language part; its vision part may use another."""
    name: str | None = getattr(model.config.get_text_config(), "_attn_implementation", None)
    return name


def mask_kind_of(inputs: Mapping[str, Any]) -> str:
    """Return the kind of mask that inputs have: `dict4d`, `prefix4d`, `indexed`, `hybrid` or `positions` (no mask).

    For batches of trees it is `tree_plan`, or `dict4d` or `prefix4d` for additive masks.
    """
    mask = inputs.get("attention_mask")
    if inputs.get("tree_plan") is not None:
        return "tree_plan"
    if isinstance(mask, dict):
        return "dict4d"
    if isinstance(mask, Tensor) and mask.dim() == 4:
        return "prefix4d"
    if isinstance(mask, Tensor) and mask.dim() == 2 and int(mask.max()) > 1:
        return "indexed"
    return "hybrid" if inputs.get("seq_idx") is not None else "positions"


def branch_starts(positions: Tensor) -> list[list[int]]:
    """Return [row, column] of each token that begins a branch of a tree: `positions` [B, S] jump, but not to 0."""
    jumps = (positions.diff(dim=1) != 1) & (positions[:, 1:] != 0)
    return [[number, place + 1] for number, place in jumps.nonzero().tolist()]


def check_inputs(inputs: Mapping[str, Any], attention: str | None = None) -> None:
    """Raise MixingError if a forward's inputs let members see each other in any model with this attention."""
    positions, mask = inputs.get("position_ids"), inputs.get("attention_mask")
    if inputs.get("use_cache") is not False:
        raise MixingError(
            f"use_cache={inputs.get('use_cache')}: a model that builds a cache takes the row for one text;"
            " pass use_cache=False in the call (config.use_cache of a vision-language model is not enough)"
        )
    if inputs.get("past_key_values") is not None:
        raise MixingError("past_key_values: with a cache the row is taken for one text; leave it out")
    if inputs.get("is_causal") is False:
        raise MixingError("is_causal=False: sdpa and flash attention then look at all that follows; leave it out")
    if positions is None:
        raise MixingError("position_ids are missing: they are what tells members apart")
    row = text_positions(inputs, positions)
    forks = branch_starts(row)
    if inputs.get("tree_plan") is not None or (forks and mask_kind_of(inputs) in ("dict4d", "prefix4d")):
        _check_branches_kept_apart(inputs, attention, row, forks)
        return
    is_prefix = isinstance(mask, Tensor) and mask.dim() == 4 and mask.is_floating_point()
    if is_prefix:
        _check_additive_masks({"prefix4d": mask}, row)
    elif isinstance(mask, Tensor):
        _check_token_mask(mask, row)
    elif isinstance(mask, dict):
        _check_additive_masks(mask, row)
    elif mask is not None:
        raise MixingError(f"attention_mask is a {type(mask).__name__}, which is used as it is; leave it out")
    if (is_prefix or isinstance(mask, dict)) and attention and "flash" in attention:
        name = mask_kind_of(inputs)
        raise MixingError(f"{attention} takes no masks, and this batch has some ({name}): eager or sdpa does")
    has_cu = inputs.get("cu_seq_lens_q") is not None
    if attention and "flash" in attention and len(row) > 1 and not has_cu:
        raise MixingError(f"{attention} with {len(row)} rows needs cu_seq_lens_q, cu_seq_lens_k and max_length_q/k")
    if has_cu:
        _check_boundaries(row, inputs["cu_seq_lens_q"])
    if inputs.get("seq_idx") is not None:
        refuse_several_rows(len(row))
        if not has_cu:
            raise MixingError("seq_idx needs cu_seq_lens_q beside it, to begin anew with each member")
    if forks:
        number, place = forks[0]
        raise MixingError(
            f"position_ids jump to {int(row[number, place])}, as at a branch of a tree, and there is no mask or plan of"
            " it: transformers would take branches for one text; model_inputs(model) makes what is due"
        )


def _check_branches_kept_apart(
    inputs: Mapping[str, Any], attention: str | None, row: Tensor, forks: Sequence[Sequence[int]]
) -> None:
    """Check that the first token of each branch does not see the token before it, which is of another branch."""
    if mask_kind_of(inputs) == "tree_plan":
        if attention != TREE_ATTENTION:
            raise MixingError(f"a tree_plan, and attention is {attention}, which does not read it: model_inputs(model)")
        begins = {int(place) for place in inputs["tree_plan"].cu_seq_lens_q.tolist()}
        if any(number * row.shape[1] + place not in begins for number, place in forks):
            raise MixingError("position_ids jump where no segment of the tree_plan begins")
        return
    masks = mask if isinstance(mask := inputs["attention_mask"], dict) else {"prefix4d": mask}
    if attention and "flash" in attention:
        raise MixingError(f"{attention} takes no masks, and this batch of trees has some: use_tree_attention(model)")
    _check_additive_masks(masks, row)
    for name, one in masks.items():
        for number, place in forks:
            if bool((one[number % len(one), :, place, place - 1] > -1e4).any()):
                raise MixingError(f"attention_mask[{name!r}] lets token {place} see the branch before it")


def ids_or_embeddings(inputs: Mapping[str, Any]) -> Tensor:
    """Return the token ids [B, S]; without any, the embeddings [B, S, width]."""
    tokens: Tensor = inputs["inputs_embeds"] if inputs.get("input_ids") is None else inputs["input_ids"]
    return tokens


def text_positions(inputs: Mapping[str, Any], positions: Tensor) -> Tensor:
    """Return the positions [B, S] that restart with each member: `positions` [B, S], or the first of [4, B, S]."""
    shape = ids_or_embeddings(inputs).shape[:2]
    if positions.dim() == 3 and positions.shape[0] == 3:
        raise MixingError("position_ids [3, B, S] have no text row: a model needs [4, B, S] to see where members begin")
    if tuple(positions.shape) not in (tuple(shape), (4, *shape)):
        raise MixingError(
            f"position_ids {list(positions.shape)} for tokens {list(shape)}: must be {list(shape)} or"
            f" {[4, *shape]} (a trainer that cuts each tensor to its first rows makes such: in Accelerate,"
            " dispatch_batches=False)"
        )
    return positions[0] if positions.dim() == 3 else positions


def _check_token_mask(mask: Tensor, row: Tensor) -> None:
    if mask.dim() != 2:
        raise MixingError(
            f"a {mask.dim()}-D mask: eager attention adds a boolean one to the scores, windows are lost, and what is"
            " causal alone lets members see each other; leave it out (model.mask=dict4d makes masks where they are due)"
        )
    if mask.shape != row.shape:
        raise MixingError(f"attention_mask {list(mask.shape)} for tokens {list(row.shape)}")
    # An indexed mask (1, 2, … by member) is all ones, too, if a row has one member.
    seen = [positions[real != 0] for positions, real in zip(row, mask.to(row.device), strict=True)]
    if mask.max() <= 1 and any(bool((positions.diff() != 1).any()) for positions in seen):
        raise MixingError("a 2-D attention_mask of ones: with it the model takes the row for one text; leave it out")


def _check_additive_masks(masks: Mapping[str, Any], row: Tensor) -> None:
    """Check that additive masks hide from each member's first token all tokens before it."""
    for name, mask in masks.items():
        if not isinstance(mask, Tensor) or mask.dim() != 4 or not mask.is_floating_point():
            raise MixingError(f"attention_mask[{name!r}] is no additive 4-D mask: model_inputs(model) makes them")
        for number, first in (row == 0).nonzero().tolist():
            if bool((mask[number % len(mask), :, first, :first] > -1e4).any()):
                raise MixingError(f"attention_mask[{name!r}] lets token {first} see the member before it")


def _check_boundaries(row: Tensor, cu_seq_lens: Tensor) -> None:
    """Check that positions restart exactly at the boundaries, so that all attention backends agree."""
    flat = row.flatten()
    begins = (flat == 0).nonzero().flatten().to(cu_seq_lens.device)
    filled = cu_seq_lens[:-1][cu_seq_lens.diff() > 0]  # empty segments stand behind the last one
    if begins.tolist() != filled.tolist() or int(cu_seq_lens[-1]) != len(flat):
        raise MixingError("position_ids do not start again where cu_seq_lens_q says a member begins")


#: names of most models' media inputs, for places that don't know the processor
MEDIA_KEYS = frozenset(
    (
        "pixel_values", "pixel_attention_mask", "image_grid_thw", "image_sizes", "batch_num_images",
        "pixel_values_videos", "video_grid_thw", "second_per_grid_ts",
        "pixel_mask", "high_res_pixel_values", "pixel_values_images", "image_position_ids", "image_grid_hw",
        "image_merge_sizes", "spatial_shapes", "target_sizes", "num_local_patches", "pixel_values_local",
        "input_features", "feature_attention_mask", "input_features_mask", "audio_input_features", "audio_embed_sizes",
    )
)  # fmt: skip
