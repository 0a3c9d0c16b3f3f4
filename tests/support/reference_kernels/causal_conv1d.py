"""causal-conv1d in plain torch: a depthwise convolution over the past that begins anew where `seq_idx` changes."""

import torch
from torch import Tensor
from torch.nn.functional import pad, silu


def causal_conv1d_fn(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, seq_idx: Tensor | None = None, activation: str | None = None
) -> Tensor:
    """x [B, D, L], weight [D, W], seq_idx [B, L] → [B, D, L]."""
    length, width = x.shape[-1], weight.shape[-1]
    members = torch.zeros_like(x[:, 0], dtype=torch.long) if seq_idx is None else seq_idx.long()
    out = torch.zeros_like(x)
    for back in range(width):
        before = pad(members, (back, 0), value=-1)[:, :length]
        out = out + pad(x, (back, 0))[..., :length] * weight[:, width - 1 - back, None] * (before == members)[:, None]
    out = out if bias is None else out + bias[:, None]
    return (silu(out) if activation in ("silu", "swish") else out).contiguous()
