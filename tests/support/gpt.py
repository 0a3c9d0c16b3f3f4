"""A tiny GPTModel of megatron-core on CPUs, alone or as one of several gloo ranks.

The model's own code runs: rotary embedding by segment and rank, tensor and sequence parallel layers, multi-token
prediction. The attention kernel alone, which needs a GPU, is replaced: keys and values of all ranks of context
parallelism are gathered, and each member is looked at by itself, as PackedSeqParams says.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from support.shards import TransformerEngine

VOCABULARY, NUM_LAYERS, WIDTH = 64, 2, 32


class _CpuForCuda(TorchFunctionMode):
    """Tensors that Megatron's code requests on a GPU are made on the CPU."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if function is Tensor.cuda:
            return args[0]
        if kwargs.get("device") == "cuda":
            kwargs["device"] = "cpu"
        kwargs.pop("pin_memory", None)
        return function(*args, **kwargs)


@contextmanager
def cpu_for_cuda() -> Iterator[None]:
    """Megatron's calls of CUDA do nothing, or are for the CPU."""
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker

    with (
        patch("torch.cuda.current_device", return_value=torch.device("cpu")),
        patch("torch.cuda.synchronize"),
        patch.object(CudaRNGStatesTracker, "fork", lambda *_: nullcontext()),
        _CpuForCuda(),
    ):
        yield


class _Norm(torch.nn.LayerNorm):
    """megatron-core's wrapper refuses sequence parallelism, which changes no forward."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any):
        super().__init__(hidden_size, eps)


class _Attention(torch.nn.Module):
    """Own queries against the keys and values of all ranks, member by member; gaps follow a member's own tokens."""

    def __init__(self, *_: Any, **__: Any):
        super().__init__()

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *_: Any, packed_seq_params: Any, **__: Any) -> Tensor:
        from megatron.core.parallel_state import get_context_parallel_group

        group, padded = get_context_parallel_group(), packed_seq_params.cu_seqlens_q_padded
        bounds = packed_seq_params.cu_seqlens_q if padded is None else padded
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        places = [torch.arange(len(q))]
        if group.size() > 1:
            total = len(q) * group.size()
            places = [
                TransformerEngine.thd_get_partitioned_indices(bounds, total, group.size(), rank)
                for rank in range(group.size())
            ]
            k, v = (_gathered(x, group)[torch.cat(places).argsort()] for x in (k, v))
        own, out = places[group.rank()], torch.empty_like(q)
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))
        for start, end in pairwise(bounds.tolist()):
            here = (own >= start) & (own < end)
            seen = own[here][:, None] >= torch.arange(start, end)
            out[here] = scaled_dot_product_attention(q[:, here], k[:, start:end], v[:, start:end], seen).transpose(0, 1)
        return out.flatten(1)


def _gathered(x: Tensor, group: Any) -> Tensor:
    every = [torch.empty_like(x) for _ in range(group.size())]
    torch.distributed.all_gather(every, x.contiguous(), group=group)
    return torch.cat(every)


def tiny_gpt(first: bool = True, last: bool = True, **settings: Any) -> Any:
    """The model of this rank; all ranks' are parts of the same.

    Args:
        first, last: it has the embeddings, the output layer.
        settings: of TransformerConfig.
    """
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec, get_gpt_mtp_block_spec
    from megatron.core.transformer import TransformerConfig

    torch.manual_seed(0)
    config = TransformerConfig(
        num_layers=NUM_LAYERS,
        hidden_size=WIDTH,
        num_attention_heads=4,
        num_query_groups=2,
        use_cpu_initialization=True,
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        bias_dropout_fusion=False,
        apply_rope_fusion=False,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        init_method_std=0.2,
        **settings,
    )
    local = "megatron.core.models.backends.LocalSpecProvider.layer_norm"
    with (
        patch("megatron.core.transformer.transformer_block.LayerNormImpl", _Norm),
        patch(local, lambda *_, **__: _Norm),
    ):
        spec = get_gpt_layer_local_spec()
        spec.submodules.self_attention.submodules.core_attention = _Attention
        mtp = get_gpt_mtp_block_spec(config, spec, use_transformer_engine=False) if config.mtp_num_layers else None
        positions = "mrope" if config.mrope_section else "rope"
        return GPTModel(
            config, spec, VOCABULARY, 128, first, last, position_embedding_type=positions, mtp_block_spec=mtp
        ).eval()
