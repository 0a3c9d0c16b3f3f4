"""Time of a training step on samples that share a beginning: `python benchmarks/tree_steps.py`.

A small Qwen3 runs forward and backward on one thread: each sample alone, all as one pack, and as one tree, by masks and
by gathered keys. A tree has to take at most 0.4 of the time of its samples one by one, with a root of 256 tokens and
eight branches of 48.

`--device cuda`: a Qwen3 of 2B in bfloat16, with flash-attn where it is installed, by seconds on the clock.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from gpu_model import wait_for
from rich.console import Console
from rich.table import Table
from timing import at_most, cpu_seconds_in_turn
from torch import Tensor

from energon_pack.templates.full_processor import prepare_torchvision
from energon_pack.training.batch import PackedBatch, weighted_loss
from energon_pack.training.layout import IGNORE, Member, RowForm, lay_out_neat_rows
from energon_pack.training.tree_inputs import use_tree_attention
from energon_pack.training.tree_rows import lay_out_neat_trees

prepare_torchvision()
#: tokens of the root, tokens of a branch, branches; the first one has a goal
CASES = ((256, 48, 8), (1024, 48, 8), (1024, 48, 4), (1024, 256, 4), (2048, 64, 12))
GOAL = 0.4
NAMES = ("one pack", "tree, masks", "tree, gathered keys")
VOCABULARY = 2048
#: width, width of an MLP, layers, width of a head, heads of queries, heads of keys
SIZES = {"cpu": (256, 768, 4, 64, 4, 2), "cuda": (2048, 6144, 28, 128, 16, 8)}


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


def model_of(attention: str, device: torch.device) -> Any:
    """A Qwen3 of the device's sizes; `tree`: with this package's attention."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "head_dim", "num_attention_heads")
    sizes: dict[str, Any] = dict(zip((*names, "num_key_value_heads"), SIZES[device.type], strict=True))
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    config = Qwen3Config(**sizes, vocab_size=VOCABULARY)
    plain = "sdpa" if attention == "tree" else attention
    with device:
        model = Qwen3ForCausalLM._from_config(config, attn_implementation=plain, dtype=dtype).train()
    if attention == "tree":
        use_tree_attention(model)
    return model


def plain_attention(device: torch.device) -> str:
    """Of samples one by one, and in one pack."""
    return "flash_attention_2" if device.type == "cuda" and find_spec("flash_attn") else "sdpa"


def step(model: Any, batches: Sequence[PackedBatch], total: Tensor) -> float:
    """Forward and backward of some batches; their loss."""
    model.zero_grad(set_to_none=True)
    summed = 0.0
    for batch in batches:
        loss = weighted_loss(model(**batch.model_inputs(model, labels=False)).logits, batch, total)
        loss.backward()
        summed += float(loss.detach())
    wait_for(model.device)
    return summed


def ways(members: Sequence[Member], device: torch.device) -> dict[str, Callable[[], float]]:
    """The steps, by what they are."""
    form = RowForm(weights="token")
    alone = [PackedBatch(lay_out_neat_rows([[member]], form)).to(device) for member in members]
    pack, tree = (
        PackedBatch(lay_out_neat_rows([members], form)).to(device),
        PackedBatch(lay_out_neat_trees([members], form)).to(device),
    )
    plain = model_of(plain_attention(device), device)
    masked, gathered = model_of("sdpa", device), model_of("tree", device)
    total = torch.stack([batch["loss_weight"].sum() for batch in alone]).sum()
    run = partial(partial, step)
    shared = (run(plain, [pack], total), run(masked, [tree], total), run(gathered, [tree], total))
    return {"one by one": run(plain, alone, total), **dict(zip(NAMES, shared, strict=True))}


def seconds_in_turn(works: dict[str, Callable[[], float]], times: int) -> dict[str, float]:
    """The best of some runs of each, in turn, on the clock."""
    took: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(times):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            took[name].append(time.perf_counter() - start)
    return {name: min(each) for name, each in took.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=len(CASES), help="so many of the cases")
    parser.add_argument("--times", type=int, default=3, help="runs of each; the best counts")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.set_num_threads(1)
    table = Table(
        "root, branch, branches", "tokens", "one by one", "pack", "tree, masks", "gathered keys", "goal", box=None
    )
    for case in CASES[: arguments.cases]:
        root, branch, number = case
        every = ways(samples(*case), device)
        losses = [work() for work in every.values()]
        if max(losses) - min(losses) > (1e-4 if device.type == "cpu" else 1e-2):
            raise SystemExit(f"the losses differ: {losses}")
        took = (cpu_seconds_in_turn if device.type == "cpu" else seconds_in_turn)(every, arguments.times)
        base = took["one by one"]
        shares = [took[name] / base for name in NAMES]
        goal = at_most(max(shares[1:]), GOAL) if case == CASES[0] else ""
        whole, tree = number * (root + branch), root + number * branch
        table.add_row(
            f"{root}, {branch}, {number}",
            f"{whole:,} → {tree:,}",
            f"{base:.3f} s",
            *(f"{one:.2f}" for one in shares),
            goal,
        )
    print(f"one by one and pack: {plain_attention(device)}; trees: this package's attention")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
