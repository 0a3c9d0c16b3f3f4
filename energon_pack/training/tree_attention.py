"""Attention for trees without a mask: the tokens that a member brings attend to the keys of the whole member.

`use_tree_attention` gives a model's text part this function, which transformers calls by its name. A batch of trees
brings its plan as a keyword (`model_inputs(model)`), which transformers hands down to every layer. On a GPU with
flash-attn one call of its kernel for stretches of several lengths does it, elsewhere sdpa for each stretch.
"""

import importlib.util
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from energon_pack.training.forward_inputs import TREE_ATTENTION
from energon_pack.training.model_wrappers import unwrapped


class TreePlan(NamedTuple):
    """For each segment of a batch of trees, the rows of its queries and keys: items of `neat_trees`."""

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
    register_tree_attention()
    unwrapped(model).config.get_text_config()._attn_implementation = TREE_ATTENTION


@cache
def register_tree_attention() -> None:
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
    tree_plan: TreePlan | None = None,
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
