"""A batch cut for the ranks of context parallelism, by megatron-core's own functions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor


@dataclass(frozen=True)
class Group:
    """A stand-in for a process group, with the methods that megatron-core calls."""

    num_ranks: int
    number: int

    def size(self) -> int:
        return self.num_ranks

    def rank(self) -> int:
        return self.number


class TransformerEngine:
    """Stand-in for `transformer_engine_torch`, which has no build for a CPU."""

    @staticmethod
    def thd_get_partitioned_indices(cu_seqlens: Tensor, total_tokens: int, num_ranks: int, rank: int) -> Tensor:
        """Tokens of a rank: of each member cut into 2·ranks chunks, chunk `rank` and, from the end, chunk `rank`.

        The rule is that of `thd_partition_indices_kernel` in transformer_engine/common/fused_attn/context_parallel.cu,
        which asserts that boundaries are such multiples.

        Raises:
            ValueError: a boundary that is no multiple of 2·ranks, or a total that is not the last of them.
        """
        if (cu_seqlens % (2 * num_ranks)).any() or int(cu_seqlens[-1]) != total_tokens:
            raise ValueError(f"boundaries {cu_seqlens.tolist()} of {total_tokens} tokens on {num_ranks} ranks")
        chunks = [
            torch.arange(start, end).view(2 * num_ranks, -1)[[rank, 2 * num_ranks - 1 - rank]].flatten()
            for start, end in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True)
        ]
        return torch.cat(chunks)


def megatron_shards(batch: Mapping[str, Any], tensors: Mapping[str, Tensor], num_ranks: int) -> list[dict[str, Tensor]]:
    """The part of each rank, by megatron-core: of each member (`thd`), or of each row (`neat`).

    Args:
        batch: says where members lie.
        tensors: [B, S, …]; `attention_mask` [B, 1, S, S].
    """
    from megatron.core import utils

    if "cu_seqlens_q" not in batch:
        with patch("torch.distributed.is_initialized", return_value=True):  # else megatron-core asks no group
            return [utils.get_batch_on_this_cp_rank(dict(tensors), Group(num_ranks, r)) for r in range(num_ranks)]
    real, longest = batch["cu_seqlens_q"], batch["max_seqlen_q"].view(1)
    padded = batch.get("cu_seqlens_q_padded", real)
    tokens = {"tokens": next(iter(tensors.values())), **tensors}  # it asks these how many there are
    with patch.multiple(utils, tex=TransformerEngine, is_te_min_version=lambda *_: True):
        return [
            utils.get_thd_batch_on_this_cp_rank(dict(tokens), real, padded, longest, num_ranks, r)[0]
            for r in range(num_ranks)
        ]
