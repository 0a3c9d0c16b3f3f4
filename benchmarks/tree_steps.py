"""Time of a training step on samples that share a beginning: `python benchmarks/tree_steps.py`.

A small Qwen3 runs forward and backward on one thread: each sample alone, all as one pack, and as one tree, by masks and
by gathered keys. A tree has to take at most 0.4 of the time of its samples one by one, with a root of 256 tokens and
eight branches of 48.
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from timing import at_most, cpu_seconds_in_turn
from torch import Tensor

from energon_pack.templates.full import prepare_torchvision
from energon_pack.training.batch import PackedBatch, weighted_loss
from energon_pack.training.layout import IGNORE, Member, RowForm, neat
from energon_pack.training.tree_attention import use_tree_attention
from energon_pack.training.tree_rows import neat_trees

prepare_torchvision()
#: tokens of the root, tokens of a branch, branches; the first one has a goal
CASES = ((256, 48, 8), (1024, 48, 8), (1024, 48, 4), (1024, 256, 4), (2048, 64, 12))
GOAL = 0.4
NAMES = ("one pack", "tree, masks", "tree, gathered keys")
VOCABULARY = 2048


def samples(root: int, branch: int, number: int) -> list[Member]:
    """Random tokens; what is trained is each branch but its first token."""
    torch.manual_seed(0)
    shared = torch.randint(5, VOCABULARY, (root,))
    made = []
    for index in range(number):
        ids = torch.cat([shared, torch.randint(5, VOCABULARY, (branch,))])
        labels = ids.clone()
        labels[: root + 1] = IGNORE
        made.append(Member(ids, labels, torch.zeros_like(ids), shared_len=root if index else 0))
    return made


def model_of(attention: str) -> Any:
    """Four layers, 256 wide."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4, "head_dim": 64}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCABULARY}
    model = Qwen3ForCausalLM._from_config(Qwen3Config(**sizes), attn_implementation="sdpa").train()
    if attention == "varlen":
        use_tree_attention(model)
    return model


def step(model: Any, batches: Sequence[PackedBatch], total: Tensor) -> float:
    """Forward and backward of some batches; their loss."""
    model.zero_grad(set_to_none=True)
    summed = 0.0
    for batch in batches:
        loss = weighted_loss(model(**batch.model_inputs(model, labels=False)).logits, batch, total)
        loss.backward()
        summed += float(loss.detach())
    return summed


def ways(members: Sequence[Member]) -> dict[str, Callable[[], float]]:
    """The steps, by what they are."""
    form = RowForm(weights="token")
    alone = [PackedBatch(neat([[member]], form)) for member in members]
    pack, tree = PackedBatch(neat([members], form)), PackedBatch(neat_trees([members], form))
    dense, varlen = model_of("sdpa"), model_of("varlen")
    total = torch.stack([batch["loss_weight"].sum() for batch in alone]).sum()
    run = partial(partial, step)
    shared = (run(dense, [pack], total), run(dense, [tree], total), run(varlen, [tree], total))
    return {"one by one": run(dense, alone, total), **dict(zip(NAMES, shared, strict=True))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=len(CASES), help="so many of the cases")
    parser.add_argument("--times", type=int, default=3, help="runs of each; the best counts")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    table = Table(
        "root, branch, branches", "tokens", "one by one", "pack", "tree, masks", "gathered keys", "goal", box=None
    )
    for case in CASES[: arguments.cases]:
        root, branch, number = case
        every = ways(samples(*case))
        losses = [work() for work in every.values()]
        if max(losses) - min(losses) > 1e-4:
            raise SystemExit(f"the losses differ: {losses}")
        took = cpu_seconds_in_turn(every, arguments.times)
        base = took["one by one"]
        shares = [took[name] / base for name in NAMES]
        goal = at_most(max(shares[1:]), GOAL) if case == CASES[0] else ""
        whole, tree = number * (root + branch), root + number * branch
        table.add_row(
            f"{root}, {branch}, {number}",
            f"{whole:,} → {tree:,}",
            f"{base:.2f} s",
            *(f"{one:.2f}" for one in shares),
            goal,
        )
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
