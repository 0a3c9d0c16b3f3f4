"""Two ranks, most with sharded parameters, guarded: each way is trained with the trial of the first batch and without.

Run by tests/training/test_wrapped.py. In the first step rank 1 has a pack of one member, so neither rank may try.
"""

from functools import partial
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from energon_pack.training.forward_inputs import MixingError
from energon_pack.training.guards import Guard, guard
from support.gloo_groups import run_each_way
from support.tiny import TEXT, make_batch, make_members, tf

NUM_RANKS = 2
#: each rank has all parameters while it tries, so it tries by itself
ALONE = ("DDP", "FSDP1 of the whole model")
WAYS = ("plain", "resharded", "guarded after", "bad on rank 1", "FSDP1", "FSDP1, flat parameters", *ALONE)


def train(way: str, rank: int, first_batch: bool) -> tuple[Guard, list[Any], list[int]]:
    """Three steps: losses and gradients, and the trials until each."""
    torch.manual_seed(0)
    model = tf.LlamaForCausalLM(tf.LlamaConfig(**TEXT, attention_dropout=0.2)).train()
    members = make_members("llama", model)
    held = guard(model, first_batch=first_batch)
    if way == "bad on rank 1" and rank == 1:
        model.model.layers[1].self_attn.register_forward_pre_hook(
            lambda _, args, keywords: (args, {**keywords, "attention_mask": None}), with_kwargs=True
        )
    trained: Any = model
    if way == "DDP":
        trained = DistributedDataParallel(model)
    elif way.startswith("FSDP1"):
        wraps = partial(transformer_auto_wrap_policy, transformer_layer_cls={type(model.model.layers[0])})
        trained = FullyShardedDataParallel(
            model,
            auto_wrap_policy=None if way in ALONE else wraps,
            use_orig_params=way != "FSDP1, flat parameters",
            device_id=torch.device("cpu"),
        )
    else:
        mesh = init_device_mesh("cpu", (NUM_RANKS,))
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh, reshard_after_forward=way == "resharded" or None)
    if way == "guarded after":
        held.remove()
        held = guard(model, first_batch=first_batch)
    torch.manual_seed(5 + rank)
    found, num_trials = [], []
    for step in range(3):
        rows = [members[:1]] if step == 0 and rank == 1 else [members[:3], members[2:]]
        inputs = make_batch("llama", rows, width=40).model_inputs(model)
        loss = trained(**inputs).loss
        is_gathered = not isinstance(model.lm_head.weight, DTensor)  # a loss of one's own may call it
        assert is_gathered == (way != "resharded")
        loss.backward()
        grads = [part.grad for part in trained.parameters() if part.grad is not None]
        found += [
            loss.detach(),
            *(one.to_local().clone() if isinstance(one, DTensor) else one.clone() for one in grads),
        ]
        model.zero_grad()
        num_trials.append(len(held.trials))
    return held, found, num_trials


def check(way: str, rank: int) -> None:
    """Train with the trial and without it, on this rank."""
    try:
        _, found, num_trials = train(way, rank, True)
        assert num_trials[0] >= 1 or way in ALONE
        assert num_trials[1] >= 1
        assert all(map(torch.equal, found, train(way, rank, False)[1]))
        print(f"{way}, rank {rank}: the same as without the trial, tried in step 2", flush=True)
    except MixingError as error:
        print(f"{way}, rank {rank}: {error}", flush=True)


if __name__ == "__main__":
    run_each_way(check, WAYS, NUM_RANKS)
