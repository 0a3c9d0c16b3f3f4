"""Make the inputs by which a model sees trees: a plan or additive masks, depending on its attention.

Nothing is left to transformers, which would take positions that jump back for one text, or for other packs.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from energon_pack.training.forward_inputs import TREE_ATTENTION, MixingError, attention_of
from energon_pack.training.masks import (
    ImageAttention,
    ModelOutline,
    TreeTensors,
    follows_other_member,
    has_bidirectional_prefix,
    image_attention_of,
    outline_of,
    tree_masks,
)
from energon_pack.training.model_wrappers import class_of
from energon_pack.training.tree_attention import TreePlan, register_tree_attention

#: kinds of layers that attend; all others carry a state along the row
_ATTENTION_KINDS = frozenset(("full_attention", "sliding_attention", "chunked_attention"))
#: names of parts that carry a state or mix neighbours in the row
_STATEFUL_PARTS = re.compile(
    r"mamba|rwkv|xlstm|mlstm|slstm|recurrent|delta_?net|kimi_?delta|linear_?attention|lightning_?attention"
    r"|short_?conv|hyena|retention",
    re.IGNORECASE,
)
#: names of parts that predict more than the next token
_MULTI_TOKEN_PARTS = re.compile(r"mtp|nextn|multi_?token", re.IGNORECASE)


def tree_attention_inputs(batch: Mapping[str, Any], model: Any) -> dict[str, Any]:
    """Return `attention_mask` and, for this package's attention, `tree_plan` of a batch of trees."""
    refuse_model_for_trees(model)
    attention = attention_of(model)
    if attention == TREE_ATTENTION:
        register_tree_attention()
        if image_attention_of(model) is not ImageAttention.CAUSAL and bool((batch["mm_token_type_ids"] > 0).any()):
            raise MixingError(
                f"{class_of(model).__name__} sees images in both directions, for which {TREE_ATTENTION} has no place:"
                " attn_implementation='sdpa' or 'eager' has masks for them"
            )
        nothing = torch.zeros(1, 1, 1, 1, dtype=model.dtype, device=model.device)  # so that no mask is made
        return {"attention_mask": _by_layer_kind(model, lambda _: nothing), "tree_plan": tree_plan_of(batch)}
    return {"attention_mask": _by_layer_kind(model, _additive_masks(batch, outline_of(model)).__getitem__)}


def tree_mask_kind(model: Any) -> str:
    """Return the mask of a model's tree batches, as `mask_kind_of` names it: `tree_plan`, `prefix4d` or `dict4d`."""
    if attention_of(model) == TREE_ATTENTION:
        return "tree_plan"
    return "prefix4d" if len(layer_kinds(model.config.get_text_config())) == 1 else "dict4d"


def tree_plan_of(batch: Mapping[str, Any]) -> TreePlan:
    """Return the plan by which this package's attention computes a batch of trees."""
    names = ("k_index", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
    ends = (tuple(batch[name].tolist()) for name in ("cu_seq_lens_q", "cu_seq_lens_k"))
    return TreePlan(*(batch[name] for name in names), *ends)


def refuse_model_for_trees(model: Any) -> None:
    """Raise MixingError if a model can't train on trees: branches would see each other, or have another loss."""
    name, text, attention = class_of(model).__name__, model.config.get_text_config(), attention_of(model)
    wrong = [
        f"has layers of {kind}: a branch would go on from its sibling"
        for kind in sorted(layer_kinds(text) - _ATTENTION_KINDS)
    ]
    for part_name, part in model.named_modules():
        kind = type(part).__name__
        if _STATEFUL_PARTS.search(kind):
            wrong.append(f"has a {kind}, which carries a state along the row: a branch would go on from its sibling")
        if _MULTI_TOKEN_PARTS.search(kind) or _MULTI_TOKEN_PARTS.search(part_name.rpartition(".")[2]):
            wrong.append(f"predicts more than the next token ({part_name}): the one after it may be in another branch")
    if getattr(text, "output_router_logits", False):
        wrong.append("adds a loss of its router, which would count shared tokens once (output_router_logits=False)")
    if has_bidirectional_prefix(class_of(model), model.config):
        wrong.append("reads all before the answer in both directions, and trees have none")
    if wrong:
        raise MixingError(f"{name} {wrong[0]}; pack with packing.share=none")
    if attention == TREE_ATTENTION and getattr(text, "attention_chunk_size", None):
        raise MixingError(
            f"{name} attends in chunks, which {TREE_ATTENTION} does not: attn_implementation='sdpa' or 'eager'"
        )
    if attention not in ("sdpa", "eager", TREE_ATTENTION):
        raise MixingError(
            f"attn_implementation={attention!r} of {name} takes no tree: use_tree_attention(model) has it use"
            " flash-attn where that is installed; sdpa and eager take masks"
        )


def layer_kinds(text: Any) -> set[str]:
    """Return the kinds of a model's layers, such as `full_attention`, from its text config."""
    kinds = getattr(text, "layer_types", None)
    if kinds:
        return set(kinds)
    if getattr(text, "sliding_window", None):
        return {"sliding_attention"}
    return {"chunked_attention" if getattr(text, "attention_chunk_size", None) else "full_attention"}


def _by_layer_kind(model: Any, mask: Callable[[str], Any]) -> Any:
    """Return the mask of the only kind of layer, or a dict with one for each kind, as classes take them."""
    kinds = sorted(layer_kinds(model.config.get_text_config()))
    return mask(kinds[0]) if len(kinds) == 1 else {kind: mask(kind) for kind in kinds}


def _additive_masks(batch: Mapping[str, Any], outline: ModelOutline) -> dict[str, Tensor]:
    """Return additive masks by kind of layer, on the model's device."""
    if outline.image_attention is not ImageAttention.CAUSAL:
        _refuse_cut_images(batch)
    names = ("tree_end", "tree_index", "doc_ids", "mm_token_type_ids")
    return tree_masks(TreeTensors(*(batch[name].to(outline.device) for name in names)), outline)


def _refuse_cut_images(batch: Mapping[str, Any]) -> None:
    """Raise MixingError if a branch begins with an image's tokens right behind another image's, seen as one image."""
    is_image, index = batch["mm_token_type_ids"] > 0, batch["tree_index"]
    for row, place in (follows_other_member(batch["doc_ids"]) & (index > 0) & is_image).nonzero().tolist():
        before = (index[row, :place] == index[row, place] - 1) & (batch["tree_end"][row, :place] > place)
        if bool((is_image[row, :place] & before).any()):
            raise MixingError(f"a branch begins inside a run of image tokens, at token {place} of row {row}")
