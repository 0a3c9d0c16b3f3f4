"""mamba-ssm's scan of Mamba 2 in plain torch, all tokens with all: no state goes on where `seq_idx` changes."""

from typing import Any

import torch
from causal_conv1d import causal_conv1d_fn
from torch import Tensor
from torch.nn.functional import linear, silu, softplus


def mamba_chunk_scan_combined(
    x: Tensor,
    dt: Tensor,
    A: Tensor,  # as mamba-ssm names them
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    seq_idx: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False,
    **_: Any,
) -> Any:
    """x [B, L, H, P], dt [B, L, H], A and D [H], B and C [B, L, G, N], seq_idx [B, L] → [B, L, H, P]."""
    dt = dt if dt_bias is None else dt + dt_bias
    dt = (softplus(dt) if dt_softplus else dt).clamp(*dt_limit)
    B, C = (part.repeat_interleave(x.shape[2] // part.shape[2], dim=2) for part in (B, C))
    members = torch.zeros_like(x[:, :, 0, 0]) if seq_idx is None else seq_idx
    seen = (members[:, :, None] == members[:, None, :]).tril()[..., None]  # [B, L, L, 1]
    decay = (dt * A).cumsum(1)
    kept = (decay[:, :, None] - decay[:, None, :]).masked_fill(~seen, float("-inf")).exp()
    first, second, steps, values = (part.to(kept.dtype) for part in (C, B, dt, x))  # A is a float32 in any model
    out = torch.einsum("bthn,bshn,btsh,bsh,bshp->bthp", first, second, kept, steps, values)
    out = out if D is None else out + D[:, None] * x
    out = (out if z is None else out * silu(z)).to(x.dtype).contiguous()
    return (out, None) if return_final_states else out


def mamba_split_conv1d_scan_combined(  # noqa: PLR0913  # as mamba-ssm has them
    zxbcdt: Tensor,
    conv1d_weight: Tensor,
    conv1d_bias: Tensor | None,
    dt_bias: Tensor,
    A: Tensor,
    D: Tensor,
    chunk_size: int,
    seq_idx: Tensor | None = None,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    activation: str = "silu",
    rmsnorm_weight: Tensor | None = None,
    rmsnorm_eps: float = 1e-6,
    outproj_weight: Tensor | None = None,
    outproj_bias: Tensor | None = None,
    headdim: int | None = None,
    ngroups: int = 1,
    norm_before_gate: bool = True,
) -> Tensor:
    """All of a layer but its first projection: zxbcdt [B, L, 2 H·P + 2 G·N + H] → [B, L, width]."""
    num_heads, num_channels = len(A), len(conv1d_weight)
    inner = zxbcdt.shape[-1] - num_channels - num_heads
    z, xbc, dt = zxbcdt.split([inner, num_channels, num_heads], dim=-1)
    xbc = causal_conv1d_fn(xbc.transpose(1, 2), conv1d_weight, conv1d_bias, seq_idx, activation).transpose(1, 2)
    x, *bc = xbc.split([inner, *[(num_channels - inner) // 2] * 2], dim=-1)
    B, C = (part.unflatten(-1, (ngroups, -1)) for part in bc)
    x = x.unflatten(-1, (num_heads, -1))
    out = mamba_chunk_scan_combined(
        x, dt, A, B, C, chunk_size, D, dt_bias=dt_bias, dt_softplus=True, dt_limit=dt_limit, seq_idx=seq_idx
    ).flatten(2)
    if rmsnorm_weight is None or not norm_before_gate:
        out = out * silu(z)
    if rmsnorm_weight is not None:
        groups = out.unflatten(-1, (ngroups, -1))
        out = (groups * (groups.square().mean(-1, keepdim=True) + rmsnorm_eps).rsqrt()).flatten(2) * rmsnorm_weight
        out = out * silu(z) if norm_before_gate else out
    return out if outproj_weight is None else linear(out, outproj_weight, outproj_bias)
