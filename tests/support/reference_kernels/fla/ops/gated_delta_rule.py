"""flash-linear-attention's gated delta rule in plain torch, token by token, anew from each of `cu_seqlens`."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize


def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """q, k [B, T, H, K], v [B, T, HV, V], beta [B, T, HV] → [B, T, HV, V].

    g is the log of the decay: [B, T, HV], or one for each key dimension, [B, T, HV, K].
    """
    dtype = v.dtype
    q, k, v, g, beta = (part.to(torch.promote_types(part.dtype, torch.float32)) for part in (q, k, v, g, beta))
    if use_qk_l2norm_in_kernel:
        q, k = normalize(q, dim=-1), normalize(k, dim=-1)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    q, k = (part.repeat_interleave(v.shape[2] // part.shape[2], dim=2) for part in (q * scale, k))
    begins = {0} if cu_seqlens is None else set(cu_seqlens.tolist())
    out = []
    for t in range(q.shape[1]):
        if t in begins:
            state = k.new_zeros(*k.shape[:1], *k.shape[2:], v.shape[-1])  # [B, HV, K, V]
        state = state * (g[:, t, :, None, None] if g.dim() == 3 else g[:, t, ..., None]).exp()
        error = v[:, t] - torch.einsum("bhk,bhkv->bhv", k[:, t], state)
        state = state + torch.einsum("bhk,bhv,bh->bhkv", k[:, t], error, beta[:, t])
        out.append(torch.einsum("bhk,bhkv->bhv", q[:, t], state))
    return torch.stack(out, 1).to(dtype), None
