"""DPO, IPO or a hinge loss on packed preference pairs: plain PyTorch and transformers under torchrun.

    python -m energon_pack +model=qwen2_5_vl source.path=pairs.jsonl source.take=both packing.share=prefix \\
        output.name=pairs
    python recipes/reference_logps.py packed/pairs reference.npz --model FOLDER
    torchrun --nproc-per-node 2 recipes/train_preference.py packed/pairs reference.npz --model FOLDER --save checkpoints

Packs differ in how many pairs they have, so the loss is divided by the pairs that all ranks and all accumulated batches
train together: it is the mean over the step's pairs. `--resume` goes on from the last checkpoint, on any number of
ranks. The rest is as in train_ddp.py, whose checkpoints these are. Without `--model` it trains the tiny random
Qwen2.5-VL of train_tiny.py.
"""

import argparse
import json
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.energon import WorkerConfig
from packed_data import saved_states, train_loader
from torch.nn.parallel import DistributedDataParallel
from train_ddp import device_of, newest, restore, run, save
from train_tiny import model_of

from energon_pack import (
    PackedBatch,
    PackedTaskEncoder,
    guard,
    member_logps,
    num_pairs,
    preference_loss,
    touch_vision,
    use_tree_attention,
)


def arguments_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path, help="folder of a dataset that was packed with source.take=both")
    parser.add_argument("reference", type=Path, help="file of reference_logps.py")
    parser.add_argument("--model", help="folder or hub id of a model of transformers; default: tiny and random")
    parser.add_argument("--loss", default="sigmoid", choices=("sigmoid", "ipo", "hinge"), help="sigmoid is DPO's")
    parser.add_argument("--beta", type=float, default=0.1)
    parser.add_argument("--lr", type=float, help="(5e-7; 2e-3 for the tiny model)")
    parser.add_argument("--max-steps", type=int, default=50)
    parser.add_argument("--accumulate", type=int, default=1, metavar="PACKS", help="of each rank in a step (1)")
    parser.add_argument("--num-workers", type=int, default=1, help="of each rank (1)")
    parser.add_argument("--save", type=Path, help="folder of checkpoints")
    parser.add_argument("--save-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint in --save")
    parser.add_argument("--ids", type=Path, help="each rank notes its pairs and the loss of each step in FILE.RANK")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    return parser.parse_args()


def backward(parallel: Any, model: Any, batches: list[PackedBatch], loss: str, beta: float) -> torch.Tensor:
    """Gradients of one step over this rank's accumulated batches; the mean loss of the pairs of all ranks."""
    num_ranks, device = dist.get_world_size(), model.device
    total = torch.stack([num_pairs(batch) for batch in batches]).sum().to(device)
    dist.all_reduce(total)
    summed = torch.zeros((), dtype=torch.float64, device=device)
    for number, batch in enumerate(batches, 1):
        batch = batch.to(device, non_blocking=True)
        waits = number < len(batches)
        with parallel.no_sync() if waits else nullcontext():
            logps = member_logps(parallel(**batch.model_inputs(model)).logits, batch)
            # DDP takes the mean of the ranks' gradients, not their sum.
            part = preference_loss(logps, batch["reference_logps"], batch, beta, loss, total / num_ranks)
            (part + touch_vision(model, batch)).backward()
        summed += part.detach() / num_ranks
    dist.all_reduce(summed)
    return summed


def train(arguments: argparse.Namespace) -> None:
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    device = device_of(arguments.device)
    encoder = PackedTaskEncoder(arguments.dataset, dummy_image=True, reference_logps=str(arguments.reference))
    model = model_of(arguments.model, encoder).to(device).train()
    use_tree_attention(model)  # packs with shared prompts are trees; packs without any run as with sdpa
    guard(model, encoder)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), arguments.lr or (5e-7 if arguments.model else 2e-3))
    first, states = 0, []
    if arguments.resume:
        checkpoint = newest(arguments.save)
        first = restore(checkpoint, model, optimizer)
        states = saved_states(lambda rank: checkpoint / f"loader_{rank}.pt")
    worker = WorkerConfig(rank=rank, world_size=num_ranks, num_workers=arguments.num_workers)
    loader = train_loader(arguments.dataset, encoder, worker, states, arguments.accumulate)
    for step in range(first + 1, arguments.max_steps + 1):
        batches = list(islice(loader, arguments.accumulate))
        loss = float(backward(parallel, model, batches, arguments.loss, arguments.beta))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if arguments.ids:
            ids = [row[::2] for batch in batches for row in batch["sample_ids"]]
            with open(f"{arguments.ids}.{rank}", "a") as file:
                print(json.dumps({"step": step, "ids": ids, "loss": loss}), file=file)
        if rank == 0 and (step == first + 1 or step % 10 == 0 or step == arguments.max_steps):
            print(f"step {step}  {arguments.loss} loss {loss:.4f}", flush=True)
        if arguments.save and (step % arguments.save_every == 0 or step == arguments.max_steps):
            save(arguments.save, step, model, optimizer, loader)


def main() -> None:
    run(train, arguments_of())


if __name__ == "__main__":
    main()
