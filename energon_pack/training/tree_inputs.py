"""Make the inputs by which a model sees trees, and the attention that needs no mask for them.

`use_tree_attention` gives a model's text part `tree_attention`, which transformers calls by its name. A batch of trees
brings its plan as a keyword (`model_inputs(model)`), which transformers hands down to every layer. On a GPU with
flash-attn one call of its kernel for stretches of several lengths does it, elsewhere sdpa for each stretch.

`tree_attention_inputs` makes the plan, or masks for other attention. Nothing is left to transformers, which would take
positions that jump back for one text, or for other packs.
"""

import importlib.util
import re
from collections.abc import Callable, Mapping
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from energon_pack.training.forward_inputs import TREE_ATTENTION, MixingError, attention_implementation_of
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
from energon_pack.training.model_wrappers import class_of, unwrapped


class TreeAttentionPlan(NamedTuple):
    """For each segment of a batch of trees, the rows of its queries and keys: items of `lay_out_neat_trees`."""

    k_index: Tensor
    cu_seq_lens_q: Tensor
    cu_seq_lens_k: Tensor
    max_length_q: int
    max_length_k: int
    #: the boundaries once more, on the host
    ends_q: tuple[int, ...]
    ends_k: tuple[int, ...]


def use_tree_attention(model: Any) -> None:
    """Let the language part of a model use this package's attention for trees; its vision part keeps its own.

    Batches without trees, generation and evaluation go as with sdpa. A wrapped model is unwrapped.
    """
    _register_tree_attention()
    unwrapped(model).config.get_text_config()._attn_implementation = TREE_ATTENTION


@cache
def _register_tree_attention() -> None:
    """Register this package's attention in transformers, once."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(TREE_ATTENTION, tree_attention)
    AttentionMaskInterface.register(TREE_ATTENTION, sdpa_mask)


def tree_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    tree_plan: TreeAttentionPlan | None = None,
    **keywords: Any,
) -> tuple[Tensor, None]:
    """Attend along the branches of trees; return [B, S, heads, D] and None. Transformers calls this.

    Args:
        query: [B, heads, S, D].
        key, value: [B, KV heads, S, D].
        attention_mask: not read if there is a plan.
        sliding_window: how many tokens of its sample a token sees, itself among them.
        s_aux: [heads]: the sinks of gpt-oss.
        tree_plan: None: the batch has no trees, and attention is sdpa's.
    """
    if tree_plan is None:
        if softcap is None and s_aux is None:
            from transformers.integrations.sdpa_attention import sdpa_attention_forward

            return sdpa_attention_forward(
                module, query, key, value, attention_mask, dropout, scaling, is_causal=keywords.get("is_causal")
            )
        if attention_mask is None:
            attention_mask = _last_queries_mask(query.shape[2], key.shape[2], sliding_window, query.device)
        out = _attend(query, key, value, attention_mask, dropout, scaling, softcap, s_aux)
        return out.transpose(1, 2).contiguous(), None
    batch, heads, length, _ = query.shape
    queries = query.transpose(1, 2).flatten(0, 1)
    keys, values = (part.transpose(1, 2).flatten(0, 1)[tree_plan.k_index] for part in (key, value))
    flash = _flash_kernel_for(query, value, s_aux)
    if flash is not None:
        out = flash(
            queries,
            keys,
            values,
            cu_seqlens_q=tree_plan.cu_seq_lens_q,
            cu_seqlens_k=tree_plan.cu_seq_lens_k,
            max_seqlen_q=tree_plan.max_length_q,
            max_seqlen_k=tree_plan.max_length_k,
            dropout_p=dropout,
            softmax_scale=scaling,
            causal=True,
            window_size=(sliding_window - 1, 0) if sliding_window else (-1, -1),
            softcap=softcap or 0.0,
        )
        return out.view(batch, length, heads, -1), None
    outputs = []
    for (a, b), (start, end) in zip(pairwise(tree_plan.ends_q), pairwise(tree_plan.ends_k), strict=True):
        mask = _last_queries_mask(b - a, end - start, sliding_window, query.device)
        q, k, v = (part.transpose(0, 1)[None] for part in (queries[a:b], keys[start:end], values[start:end]))
        outputs.append(_attend(q, k, v, mask, dropout, scaling, softcap, s_aux)[0].transpose(0, 1))
    return torch.cat(outputs).view(batch, length, heads, -1), None


def _last_queries_mask(num_queries: int, num_keys: int, window: int | None, device: torch.device) -> Tensor:
    """Return bool [queries, keys]: causal, the last query at the last key; within a window, if there is one."""
    ones = torch.ones(num_queries, num_keys, dtype=torch.bool, device=device)
    seen = ones.tril(num_keys - num_queries)
    return seen.triu(num_keys - num_queries - window + 1) if window else seen


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    dropout: float,
    scaling: float | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Return [B, heads, queries, D] for a mask of bools or an additive one."""
    repeat = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeat, 1), value.repeat_interleave(repeat, 1)
    if softcap is None and sinks is None:
        return scaled_dot_product_attention(query, key, value, mask, dropout, scale=scaling)
    scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min) if mask.dtype == torch.bool else scores + mask
    if sinks is not None:
        scores = torch.cat([scores, sinks.view(1, -1, 1, 1).expand(len(scores), -1, scores.shape[2], 1)], -1)
    shares = torch.softmax(scores.float(), -1).to(query.dtype)[..., : key.shape[2]]
    return torch.nn.functional.dropout(shares, dropout) @ value


def _flash_kernel_for(query: Tensor, value: Tensor, sinks: Tensor | None) -> Any:
    """Return flash-attn's kernel for segments of several lengths; None: not installed, or not for these tensors."""
    if not query.is_cuda or query.dtype.itemsize > 2 or sinks is not None or query.shape[-1] != value.shape[-1]:
        return None
    return _installed_flash()


@cache
def _installed_flash() -> Any:
    if importlib.util.find_spec("flash_attn") is None:
        return None
    from flash_attn import flash_attn_varlen_func

    return flash_attn_varlen_func


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
    attention = attention_implementation_of(model)
    if attention == TREE_ATTENTION:
        _register_tree_attention()
        if image_attention_of(model) is not ImageAttention.CAUSAL and bool((batch["mm_token_type_ids"] > 0).any()):
            raise MixingError(
                f"{class_of(model).__name__} sees images in both directions, for which {TREE_ATTENTION} has no place:"
                " attn_implementation='sdpa' or 'eager' has masks for them"
            )
        nothing = torch.zeros(1, 1, 1, 1, dtype=model.dtype, device=model.device)  # so that no mask is made
        return {"attention_mask": _by_layer_kind(model, lambda _: nothing), "tree_plan": _tree_plan_of(batch)}
    return {"attention_mask": _by_layer_kind(model, _additive_masks(batch, outline_of(model)).__getitem__)}


def tree_mask_kind(model: Any) -> str:
    """Return the mask of a model's tree batches, as `mask_kind_of` names it: `tree_plan`, `prefix4d` or `dict4d`."""
    if attention_implementation_of(model) == TREE_ATTENTION:
        return "tree_plan"
    return "prefix4d" if len(_layer_kinds(model.config.get_text_config())) == 1 else "dict4d"


def _tree_plan_of(batch: Mapping[str, Any]) -> TreeAttentionPlan:
    """Return the plan by which this package's attention computes a batch of trees."""
    names = ("k_index", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
    ends = (tuple(batch[name].tolist()) for name in ("cu_seq_lens_q", "cu_seq_lens_k"))
    return TreeAttentionPlan(*(batch[name] for name in names), *ends)


def refuse_model_for_trees(model: Any) -> None:
    """Raise MixingError if a model can't train on trees: branches would see each other, or have another loss."""
    name, text, attention = class_of(model).__name__, model.config.get_text_config(), attention_implementation_of(model)
    wrong = [
        f"has layers of {kind}: a branch would go on from its sibling"
        for kind in sorted(_layer_kinds(text) - _ATTENTION_KINDS)
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


def _layer_kinds(text: Any) -> set[str]:
    """Return the kinds of a model's layers, such as `full_attention`, from its text config."""
    kinds = getattr(text, "layer_types", None)
    if kinds:
        return set(kinds)
    if getattr(text, "sliding_window", None):
        return {"sliding_attention"}
    return {"chunked_attention" if getattr(text, "attention_chunk_size", None) else "full_attention"}


def _by_layer_kind(model: Any, mask: Callable[[str], Any]) -> Any:
    """Return the mask of the only kind of layer, or a dict with one for each kind, as classes take them."""
    kinds = sorted(_layer_kinds(model.config.get_text_config()))
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
