"""flash-attention in plain torch, by its documentation alone, for machines without a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from support.tiny import tf

flash: Any = import_module("transformers.modeling_flash_attention_utils")


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
) -> Tensor:
    """q [total, H, D], k and v [total, HK, D]; each stretch of `cu_seqlens` attends to itself alone → [total, H, D]."""
    assert dropout_p == 0.0
    ends = [*zip(cu_seqlens_q.tolist(), cu_seqlens_k.tolist(), strict=True)]
    rest = (softmax_scale, causal, window_size, softcap)
    out = [_attend(q[a:b], k[c:d], v[c:d], *rest) for (a, c), (b, d) in pairwise(ends)]
    assert max(len(one) for one in out) <= int(max_seqlen_q)
    assert max(d - c for (_, c), (_, d) in pairwise(ends)) <= int(max_seqlen_k)
    return torch.cat(out)


def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, **settings: Any) -> Tensor:
    """q [B, S, H, D], k and v [B, S, HK, D]: each row attends to itself."""
    batch, length = q.shape[:2]
    ends = torch.arange(0, (batch + 1) * length, length)
    q, k, v = (part.flatten(0, 1) for part in (q, k, v))
    out = flash_attn_varlen_func(q, k, v, ends, ends, length, length, **settings)
    return out.view(batch, length, *out.shape[1:])


def _attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None, causal: bool, window: tuple[int, int], softcap: float
) -> Tensor:
    groups = q.shape[1] // k.shape[1]
    k, v = (part.repeat_interleave(groups, dim=1) for part in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    ahead = torch.arange(len(k)) - torch.arange(len(q))[:, None] - (len(k) - len(q))  # the last tokens are in line
    left, right = window
    hidden = (ahead > 0) & causal | (ahead < -left) & (left >= 0) | (ahead > right) & (right >= 0)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, float("-inf")).softmax(-1), v)


@contextmanager
def emulated_flash() -> Iterator[None]:
    """Within, transformers takes `flash_attention_2` for installed, and these functions for its own."""
    functions = (flash_attn_func, flash_attn_varlen_func, None, flash._pad_input, flash._unpad_input)
    with (
        patch.object(flash, "_lazy_imports", lambda *_, **__: functions),
        patch.object(flash, "_loaded_implementation", None),
        patch.dict(flash.FLASH_ATTENTION_COMPATIBILITY_MATRIX[2], general_availability_check=lambda: True),
        patch.object(tf.PreTrainedModel, "_flash_attn_import_error", lambda *_, **__: None),
    ):
        yield
