"""Data-parallel training on one machine: plain PyTorch and transformers under torchrun, with gloo or nccl.

    torchrun --nproc-per-node 2 recipes/train_ddp.py packed/demo --processor FOLDER --save checkpoints --max-steps 100
    torchrun --nproc-per-node 2 recipes/train_ddp.py packed/demo --processor FOLDER --save checkpoints --resume

Without `--model` it trains the tiny random Qwen2.5-VL of train_tiny.py. On GPUs, with flash attention (not run yet: it
was written where there is no GPU; on a CPU, sdpa with float32 and bfloat16 were):

    torchrun --nproc-per-node 8 recipes/train_ddp.py packed/wds --model Qwen/Qwen2.5-VL-3B-Instruct \\
        --device cuda --dtype bfloat16 --attention flash_attention_2

What to take over from it:

- Packs differ in how many tokens they train, so the loss is divided by what all ranks and all accumulated batches
  train together, not by what each does (`backward`): it is the loss of the same samples as one unpacked batch.
- `--parallel fsdp` shards the parameters (FSDP2). Vision tower and embeddings stay with the root: whether a pack has
  images or not, every rank gathers the same parameters in the same order.
- A pack of text alone goes through the vision tower with a blank image that no token sees: every rank has gradients
  for every parameter, and none waits.
- SIGTERM and SIGINT of any rank end all of them after the same step, with a checkpoint.
- A checkpoint is whole or not there: all ranks write into a folder that gets its name at the end. Each rank has its
  loader's state in it, so the samples after `--resume` are those of a run that was never stopped: with as many ranks in
  the same steps, and any other number of ranks and workers trains what is left of the epoch, each sample once. Only a
  blend needs as many ranks and workers as before.
"""

import argparse
import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import astuple
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.energon import WorkerConfig
from packed_data import TrainLoader, saved_states, train_loader, val_loader
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from train_tiny import model_of

from energon_pack import (
    Consumed,
    Journal,
    PackedBatch,
    PackedTaskEncoder,
    guard,
    source_losses,
    total_weight,
    touch_vision,
    weighted_loss,
)

#: a checkpoint is of whole tensors: it can be read without as many ranks
WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


def arguments_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path, help="folder of a packed dataset, or a Metadataset")
    parser.add_argument("--processor", help="folder or hub id; default: the files that the dataset holds")
    parser.add_argument("--model", help="folder or hub id of a model of transformers; default: tiny and random")
    parser.add_argument("--val", type=Path, help="another packed dataset for validation; default: the part val")
    parser.add_argument("--val-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--max-steps", type=int, default=50)
    parser.add_argument("--lr", type=float, help="(1e-5; 2e-3 for the tiny model)")
    parser.add_argument("--accumulate", type=int, default=1, metavar="PACKS", help="of each rank in a step (1)")
    parser.add_argument("--parallel", default="ddp", choices=("ddp", "fsdp"))
    parser.add_argument("--loss-weight", default="token", choices=("token", "sample", "sqrt"))
    parser.add_argument("--on-bad-member", default="raise", choices=("raise", "drop"))
    parser.add_argument("--num-workers", type=int, default=1, help="of each rank (1)")
    parser.add_argument("--save", type=Path, help="folder of checkpoints")
    parser.add_argument("--save-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint in --save")
    parser.add_argument("--ids", type=Path, help="each rank notes samples and loss of each step in FILE.RANK")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"), help="of the computation")
    parser.add_argument("--attention", default="sdpa", help="sdpa, eager, flash_attention_2")
    return parser.parse_args()


def newest(folder: Path) -> Path:
    """The last whole checkpoint.

    Raises:
        SystemExit: there is none.
    """
    found = sorted(folder.glob("step_*[0-9]"))
    if not found:
        raise SystemExit(f"--resume: {folder} has no checkpoint")
    return found[-1]


def save(folder: Path, step: int, model: Any, optimizer: Any, loader: TrainLoader) -> None:
    """A checkpoint of all ranks."""
    rank, final = dist.get_rank(), folder / f"step_{step:08d}"
    partial = folder / f"{final.name}.partial"
    partial.mkdir(parents=True, exist_ok=True)
    torch.save(loader.save_state(), partial / f"loader_{rank}.pt")
    of_model, of_optimizer = get_state_dict(model, optimizer, options=WHOLE)
    if rank == 0:
        torch.save({"model": of_model, "optimizer": of_optimizer, "step": step}, partial / "model.pt")
    dist.barrier()  # all have written
    if rank == 0 and not final.exists():
        partial.rename(final)
    dist.barrier()  # none goes on before it has its name


def restore(checkpoint: Path, model: Any, optimizer: Any) -> int:
    """Model and optimizer of a checkpoint, whatever wrote it; the steps that were done."""
    state = torch.load(checkpoint / "model.pt", map_location="cpu")
    of_both = {"model_state_dict": state["model"], "optim_state_dict": state["optimizer"]}
    set_state_dict(model, optimizer, **of_both, options=WHOLE)
    return int(state["step"])


def consumed(journal: Journal, device: torch.device) -> str:
    """What all ranks have trained on, before a checkpoint and since; each of them has to ask."""
    own = torch.tensor(astuple(journal.own), device=device)
    dist.all_reduce(own)
    total = journal.before + Consumed(*own.tolist())
    epochs = journal.epochs(total)
    return f"{total}" if epochs is None else f"{total}, {epochs:.2f} epochs"


def shard(model: Any, device: torch.device) -> Any:
    """FSDP2: each layer of the language model is gathered when it is run, all else from the first to the last."""
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for layer in model.get_decoder().layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def backward(
    parallel: Any, model: Any, batches: list[PackedBatch], dtype: torch.dtype, sources: list[str]
) -> torch.Tensor:
    """Gradients of one step, and its losses: those of the samples of all ranks as one unpacked batch.

    Args:
        batches: of this rank, accumulated.
        sources: entries of a mixture.

    Returns:
        float64 [2, num_sources]: as `source_losses`.
    """
    num_ranks, device = dist.get_world_size(), model.device
    total = torch.stack([total_weight(batch) for batch in batches]).sum().to(device)
    dist.all_reduce(total)
    losses = torch.zeros(2, max(1, len(sources)), dtype=torch.float64, device=device)
    for number, batch in enumerate(batches, 1):
        batch = batch.to(device, non_blocking=True)
        inputs = batch.model_inputs(model, labels=False)
        waits = number < len(batches) and isinstance(parallel, DistributedDataParallel)
        with parallel.no_sync() if waits else nullcontext():
            with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
                # DDP and FSDP take the mean of the ranks' gradients, not their sum.
                logits = parallel(**inputs).logits
                part = weighted_loss(logits, batch, total / num_ranks)
                of_vision = touch_vision(model, batch)
            (part + of_vision).backward()
        losses += source_losses(logits, batch, sources)
    dist.all_reduce(losses)
    return losses


@torch.no_grad()
def validate(model: Any, val: Any, spare: PackedBatch, dtype: torch.dtype, sources: list[str]) -> torch.Tensor:
    """The losses of all ranks' validation packs, as those of `backward`.

    Args:
        spare: run by ranks that have no packs left, and not counted: FSDP gathers with all ranks or with none.
    """
    packs, losses = iter(val), torch.zeros(2, max(1, len(sources)), dtype=torch.float64, device=model.device)
    model.eval()
    while True:
        pack = next(packs, None)
        batch = (spare if pack is None else pack).to(model.device)
        with torch.autocast(model.device.type, dtype, enabled=dtype != torch.float32):
            logits = model(**batch.model_inputs(model, labels=False)).logits
        num_left = torch.tensor(float(pack is not None), device=model.device)
        dist.all_reduce(num_left)
        if not num_left:
            model.train()
            dist.all_reduce(losses)
            return losses
        if pack is not None:
            losses += source_losses(logits, batch, sources)


def said(losses: torch.Tensor, sources: list[str]) -> str:
    """The mean loss of a trained token, and that of each entry of a mixture."""
    total, weight = losses.sum(dim=1).tolist()
    each = [f"{name} {loss / max(1e-9, of):.3f}" for name, loss, of in zip(sources, *losses.tolist(), strict=False)]
    return f"{total / max(1e-9, weight):.3f}" + (f" ({', '.join(each)})" if each else "")


def train(arguments: argparse.Namespace) -> None:
    """All steps of this rank."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    device = device_of(arguments.device)
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: signals.append(number))

    encoder = PackedTaskEncoder(
        arguments.dataset,
        arguments.processor,
        layout="neat",
        dummy_image=True,
        loss_weight=arguments.loss_weight,
        on_bad_member=arguments.on_bad_member,
    )
    model = model_of(arguments.model, encoder, arguments.attention).to(device).train()
    guard(model, encoder)  # a model or a batch in which samples would see each other is an error
    parallel = shard(model, device) if arguments.parallel == "fsdp" else DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), arguments.lr or (1e-5 if arguments.model else 2e-3))
    dtype = getattr(torch, arguments.dtype)

    worker = WorkerConfig(rank=rank, world_size=num_ranks, num_workers=arguments.num_workers)
    first, states = 0, []
    if arguments.resume:
        checkpoint = newest(arguments.save)
        first = restore(checkpoint, model, optimizer)
        states = saved_states(lambda rank: checkpoint / f"loader_{rank}.pt")
    loader = train_loader(arguments.dataset, encoder, worker, states, arguments.accumulate)
    val, of_val = val_loader(arguments.dataset, encoder, worker, arguments.val), encoder.sources
    if arguments.val and encoder.sources:  # another dataset has other entries, or none
        of_val = PackedTaskEncoder(arguments.val, arguments.processor).sources
    if first and rank == 0:
        print(f"goes on after step {first}", flush=True)
    start = time.perf_counter()

    for step in range(first + 1, arguments.max_steps + 1):
        batches = list(islice(loader, arguments.accumulate))
        losses = backward(parallel, model, batches, dtype, encoder.sources)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if arguments.ids:
            loss = float(losses[0].sum() / losses[1].sum().clamp(min=1e-9))
            note = {"step": step, "ids": [row for batch in batches for row in batch["sample_ids"]], "loss": loss}
            with open(f"{arguments.ids}.{rank}", "a") as file:
                print(json.dumps(note), file=file)
        num_signals = torch.tensor(len(signals), device=device)
        dist.all_reduce(num_signals)
        is_last = step == arguments.max_steps or bool(num_signals)
        if step % 10 == 0 or is_last or step == 1:
            line = f"step {step}  loss {said(losses, encoder.sources)}  {time.perf_counter() - start:.1f} s"
            line += f"  consumed {consumed(loader.journal, device)}"
            if rank == 0:
                print(line, flush=True)
        if arguments.save and (step % arguments.save_every == 0 or is_last):
            save(arguments.save, step, model, optimizer, loader)
        if val is not None and (step % arguments.val_every == 0 or is_last):
            found = validate(model, val, batches[-1], dtype, of_val)
            if rank == 0:
                weight = f"over {float(found[1].sum()):,.0f} tokens by weight"
                print(f"step {step}  validation loss {said(found, of_val)} {weight}")
        if is_last:
            break


def device_of(kind: str) -> torch.device:
    """Return this rank's device, `cpu` or its own GPU, which becomes the current one."""
    if kind != "cuda":
        return torch.device(kind)
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device


def run(train: Callable[[argparse.Namespace], None], arguments: argparse.Namespace) -> None:
    """Train in a process group of all ranks."""
    dist.init_process_group("nccl" if arguments.device == "cuda" else "gloo")
    train(arguments)  # a function of its own: DDP has to be gone before the process group, or gloo's threads may hang
    dist.destroy_process_group()


def main() -> None:
    run(train, arguments_of())


if __name__ == "__main__":
    main()
