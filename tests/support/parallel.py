"""Context parallelism of transformers' own classes in one process, sharded by megatron-core's own functions.

Each rank is some rows of one batch: layers of a decoder never look from row to row, so a rank knows its own tokens and
positions alone. Attention alone gathers the keys and values of all ranks, as Megatron's `cp_comm_type=all_gather` does.
Media go into the embeddings before these are sharded, as in Megatron's vision-language models.
"""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad as pad_tensor

from energon_pack.training.layout import IGNORE
from support.shards import megatron_shards
from support.tiny import tf

NAME = "all_gather_context_parallel"


def boundaries(batch: Mapping[str, Any]) -> Tensor:
    """Where members begin and end, gaps with them."""
    if "cu_seq_lens_q" in batch:
        return torch.as_tensor(batch["cu_seq_lens_q"])
    return torch.as_tensor(batch.get("cu_seqlens_q_padded", batch["cu_seqlens_q"]))


class Ranks:
    """A batch on several ranks: rows rank by rank, [ranks · B, S / ranks].

    Args:
        batch: `neat` or `thd`.
        sees_images_whole: tokens of an image see each other in both directions.
        seen: boundaries that attention obeys; by default the batch's.
    """

    def __init__(
        self, batch: Mapping[str, Any], num_ranks: int, sees_images_whole: bool = False, seen: Tensor | None = None
    ):
        self._batch, self.num_ranks = batch, num_ranks
        num_rows, width = batch["input_ids"].shape
        place = torch.arange(num_rows * width).view(num_rows, width)
        member = torch.searchsorted(boundaries(batch) if seen is None else seen, place, right=True)
        is_image = (batch["mm_token_type_ids"] == 1) & sees_images_whole
        begins = is_image & ~pad_tensor(is_image[:, :-1], (1, 0))
        image = torch.where(is_image, begins.cumsum(1), 0)
        self._full = {"place": place % width, "member": member, "image": image}
        self._own = self.shard(self._full)
        self._order = self._in_rank_order(self._own["place"]).argsort(1)

    def shard(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """[B, S, …] → [ranks · B, S / ranks, …]."""
        parts = megatron_shards(self._batch, tensors, self.num_ranks)
        return {name: torch.cat([part[name] for part in parts]) for name in tensors}

    def gather(self, rows: Tensor) -> Tensor:
        """[ranks · B, S / ranks, …] → [B, S, …], in the order of the text."""
        found = self._in_rank_order(rows)
        return torch.stack([of[order] for of, order in zip(found, self._order, strict=True)])

    def bias(self, window: int | None) -> Tensor:
        """[ranks · B, 1, S / ranks, S]: 0 where a token is seen, else -inf."""
        own = {name: rows[:, :, None] for name, rows in self._own.items()}
        every = {name: rows.repeat(self.num_ranks, 1)[:, None] for name, rows in self._full.items()}
        seen = (own["place"] >= every["place"]) | ((own["image"] == every["image"]) & (own["image"] > 0))
        seen = seen & (own["member"] == every["member"])
        if window:
            seen = seen & (own["place"] - every["place"] < window)
        return torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)[:, None]

    def _in_rank_order(self, rows: Tensor) -> Tensor:
        by_rank: Tensor = rows.unflatten(0, (self.num_ranks, -1))
        return by_rank.transpose(0, 1).flatten(1, 2)


_running: list[Ranks] = []


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **more: Any
) -> tuple[Tensor, None]:
    """Queries of each rank, keys and values of all."""
    ranks = _running[-1]
    key, value = (
        ranks.gather(x.transpose(1, 2)).transpose(1, 2).repeat(ranks.num_ranks, 1, 1, 1) for x in (key, value)
    )
    key, value = (x.repeat_interleave(module.num_key_value_groups, 1) for x in (key, value))
    bias = ranks.bias(more.get("sliding_window")) if attention_mask is None else attention_mask
    scores = query @ key.transpose(2, 3) * more["scaling"] + bias
    if more.get("s_aux") is not None:
        scores = torch.cat([scores, more["s_aux"].view(1, -1, 1, 1).expand(*scores.shape[:3], 1)], 3)
    seen = scores.softmax(3)[..., : key.shape[2]]
    return (seen @ value).transpose(1, 2), None


tf.AttentionInterface.register(NAME, _attention)


@contextmanager
def context_parallel(model: Any, ranks: Ranks) -> Iterator[None]:
    """Meanwhile the model's decoder gets the shards of what it is given, and the model gives the logits of each."""
    decoder = model.get_decoder()
    whole, config = decoder.forward, decoder.config

    def forward(
        input_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        position_ids: Tensor | None = None,
        attention_mask: Any = None,
        visual_pos_masks: Tensor | None = None,
        deepstack_visual_embeds: list[Tensor] | None = None,
        **rest: Any,
    ) -> Any:
        assert position_ids is not None
        if inputs_embeds is None:
            inputs_embeds = decoder.get_input_embeddings()(input_ids)
        positions = position_ids.movedim(0, -1) if position_ids.dim() == 3 else position_ids
        own: dict[str, Any] = ranks.shard({"inputs_embeds": inputs_embeds, "position_ids": positions.contiguous()})
        if position_ids.dim() == 3:
            own["position_ids"] = own["position_ids"].movedim(-1, 0)
        if isinstance(attention_mask, dict):
            own["attention_mask"] = {
                kind: mask if mask is None else ranks.shard({"attention_mask": mask})["attention_mask"]
                for kind, mask in attention_mask.items()
            }
        if visual_pos_masks is not None and deepstack_visual_embeds is not None:
            where = ranks.shard({"visual_pos_masks": visual_pos_masks})["visual_pos_masks"]
            spread = visual_pos_masks[..., None].expand_as(inputs_embeds)
            deep = [torch.zeros_like(inputs_embeds).masked_scatter(spread, of) for of in deepstack_visual_embeds]
            rest["deepstack_visual_embeds"] = [ranks.shard({"deep": of})["deep"][where] for of in deep]
            rest["visual_pos_masks"] = where
        return whole(**own, **rest)

    before = config._attn_implementation
    config._attn_implementation, decoder.forward = NAME, forward
    _running.append(ranks)
    try:
        yield
    finally:
        _running.pop()
        del decoder.forward
        config._attn_implementation = before


def sees_images_whole(model: Any) -> bool:
    return "token_type_ids" in inspect.signature(model.forward).parameters


def loss_of_ranks(logits: Tensor, batch: Mapping[str, Any], ranks: Ranks) -> Tensor:
    """Σ over ranks of what each has of the loss, by labels that were shifted before they were sharded."""
    own = ranks.shard({"labels": batch["labels"]})
    losses, num_trained = [], int((own["labels"] != IGNORE).sum())
    for logits_of, labels in zip(logits.chunk(ranks.num_ranks), own["labels"].chunk(ranks.num_ranks), strict=True):
        flat = (logits_of.flatten(0, 1), labels.flatten())
        losses.append(torch.nn.functional.cross_entropy(*flat, ignore_index=IGNORE, reduction="sum"))
    return torch.stack(losses).sum() / num_trained
