"""Two ranks as stages of a pipeline (torch's GPipe), with a guard and without: the same losses and gradients.

Run by tests/training/test_wrapped.py. Stages are models of transformers with some of the layers, or modules of one's
own that call parts of a model.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from energon_pack.training.guards import guard
from energon_pack.training.layout import IGNORE
from support.gloo_groups import run_each_way
from support.tiny import TEXT, make_batch, make_members, tf

WAYS = ("models", "parts")
NUM_RANKS, NUM_MICRO_BATCHES, NUM_STEPS = 2, 4, 2


class OfModel(nn.Module):
    """A model with the layers of this rank, called as a whole."""

    def __init__(self, model: Any, rank: int):
        super().__init__()
        if rank:
            model.model.embed_tokens = nn.Identity()
        else:
            model.model.norm = model.lm_head = nn.Identity()
        self.model = model

    def forward(self, tokens: Tensor, position_ids: Tensor) -> Tensor:
        """Ids [B, S] or hidden states [B, S, width] → hidden states or logits."""
        named = {"input_ids": tokens} if tokens.dim() == 2 else {"inputs_embeds": tokens}
        logits: Tensor = self.model(**named, position_ids=position_ids, use_cache=False).logits
        return logits


class OfParts(nn.Module):
    """Layers and more of a model, called one by one."""

    def __init__(self, model: Any, rank: int):
        super().__init__()
        inner = model.model
        self.first, self.rotary, self.layers = inner.embed_tokens if not rank else None, inner.rotary_emb, inner.layers
        self.last = nn.Sequential(inner.norm, model.lm_head) if rank else None

    def forward(self, tokens: Tensor, position_ids: Tensor) -> Tensor:
        """Ids [B, S] or hidden states [B, S, width] → hidden states or logits."""
        hidden = tokens if self.first is None else self.first(tokens)
        starts = torch.arange(position_ids.shape[1]) - position_ids
        mask = (starts[:, :, None] == starts[:, None, :]).tril()[:, None]
        angles = self.rotary(hidden, position_ids)
        for layer in self.layers:
            hidden = layer(hidden, attention_mask=mask, position_ids=position_ids, position_embeddings=angles)
        return hidden if self.last is None else self.last(hidden)


def train(way: str, rank: int, is_guarded: bool) -> tuple[list[Tensor], int]:
    """Losses and gradients of this rank, and the number of trials."""
    torch.manual_seed(0)
    model = tf.LlamaForCausalLM._from_config(tf.LlamaConfig(**TEXT), attn_implementation="sdpa").train()
    members = make_members("llama", model)
    rows = [members, members[::-1]] * (NUM_MICRO_BATCHES // 2)
    inputs = make_batch("llama", rows, width=40).model_inputs(model)
    model.model.layers = model.model.layers[rank : rank + 1]
    module = (OfModel if way == "models" else OfParts)(model, rank)
    held = guard(model) if is_guarded else None
    stage = PipelineStage(module, rank, NUM_RANKS, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, NUM_MICRO_BATCHES, loss_fn=loss_of)
    found: list[Tensor] = []
    for _ in range(NUM_STEPS):
        ids, rest = [inputs["input_ids"]] if rank == 0 else [], {"position_ids": inputs["position_ids"]}
        losses: list[Tensor] = []
        schedule.step(*ids, **rest, **({"target": inputs["labels"], "losses": losses} if rank else {}))
        found += losses
    found += [one.grad for one in module.parameters() if one.grad is not None]
    if held is not None:
        held.remove()
    return found, len(held.trials) if held else 0


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean loss of labels [B, S] that are not shifted."""
    pairs = logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    return nn.functional.cross_entropy(*pairs, ignore_index=IGNORE)


def check(way: str, rank: int) -> None:
    """Train without the guard and with it, on this rank."""
    plain, _ = train(way, rank, False)
    guarded, num_trials = train(way, rank, True)
    assert len(plain) == len(guarded)
    assert all(map(torch.equal, plain, guarded))
    is_tried = "tried" if num_trials >= NUM_STEPS else "not tried"
    print(f"{way}, rank {rank}: the same as without the guard, {is_tried}", flush=True)


if __name__ == "__main__":
    run_each_way(check, WAYS, NUM_RANKS)
