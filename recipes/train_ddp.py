"""Data-parallel training on one machine: plain PyTorch and transformers under torchrun, with gloo or nccl.

    torchrun --nproc-per-node 2 recipes/train_ddp.py packed/demo --processor FOLDER --save checkpoints --max-steps 100
    torchrun --nproc-per-node 2 recipes/train_ddp.py packed/demo --processor FOLDER --save checkpoints --resume

Without `--model` it trains the tiny random Qwen2.5-VL of train_tiny.py. On GPUs, with flash attention (not run yet: it
was written where there is no GPU; on a CPU, sdpa with float32 and bfloat16 were):

    torchrun --nproc-per-node 8 recipes/train_ddp.py packed/wds --model Qwen/Qwen2.5-VL-3B-Instruct \\
        --device cuda --dtype bfloat16 --attention flash_attention_2

What to take over from it:

- Packs differ in how many tokens they train, so the loss is divided by the tokens of all ranks, not by those of each.
- A pack of text alone goes through the vision tower with a blank image that no token sees: every rank has gradients
  for every parameter, and none waits.
- SIGTERM and SIGINT of any rank end all of them after the same step, with a checkpoint.
- A checkpoint is whole or not there: all ranks write into a folder that gets its name at the end. Each rank has its
  loader's state in it, so the samples after `--resume` are those of a run that was never stopped. As many ranks and
  workers as before are needed.
"""

import argparse
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.energon import WorkerConfig
from packed_data import train_loader, val_loader
from torch.nn.parallel import DistributedDataParallel
from train_tiny import evaluate, num_trained, tiny_model

from energon_pack.task_encoder import PackedTaskEncoder
from energon_pack.training.batch import touch_vision
from energon_pack.training.guards import guard


def arguments_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path, help="folder of a packed dataset, or a Metadataset")
    parser.add_argument("--processor", help="folder or hub id; default: the model's published one")
    parser.add_argument("--model", help="folder or hub id of a model of transformers; default: tiny and random")
    parser.add_argument("--val", type=Path, help="another packed dataset for validation; default: the part val")
    parser.add_argument("--val-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--max-steps", type=int, default=50)
    parser.add_argument("--lr", type=float, help="(1e-5; 2e-3 for the tiny model)")
    parser.add_argument("--num-workers", type=int, default=1, help="of each rank (1)")
    parser.add_argument("--save", type=Path, help="folder of checkpoints")
    parser.add_argument("--save-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint in --save")
    parser.add_argument("--ids", type=Path, help="each rank notes the samples of each step in FILE.RANK")
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


def save(folder: Path, step: int, model: Any, optimizer: Any, loader: Any) -> None:
    """A checkpoint of all ranks."""
    rank, final = dist.get_rank(), folder / f"step_{step:08d}"
    partial = folder / f"{final.name}.partial"
    partial.mkdir(parents=True, exist_ok=True)
    torch.save(loader.save_state_rank(), partial / f"loader_{rank}.pt")
    if rank == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save({**state, "num_ranks": dist.get_world_size()}, partial / "model.pt")
    dist.barrier()  # all have written
    if rank == 0 and not final.exists():
        partial.rename(final)
    dist.barrier()  # none goes on before it has its name


def restore(checkpoint: Path, model: Any, optimizer: Any, loader: Any) -> int:
    """Go on from a checkpoint; the steps that were done.

    Raises:
        ValueError: another number of ranks wrote it.
    """
    state = torch.load(checkpoint / "model.pt", map_location=model.device)
    if state["num_ranks"] != dist.get_world_size():
        raise ValueError(f"{checkpoint} is of {state['num_ranks']} ranks, these are {dist.get_world_size()}")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    # The loader's state is of Energon's own classes; load only what you have written.
    loader.restore_state_rank(torch.load(checkpoint / f"loader_{dist.get_rank()}.pt", weights_only=False))
    return int(state["step"])


def train(arguments: argparse.Namespace) -> None:
    """All steps of this rank."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    device = torch.device(arguments.device)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: signals.append(number))

    encoder = PackedTaskEncoder(arguments.dataset, arguments.processor, layout="neat", dummy_image=True)
    model: Any
    if arguments.model:
        from transformers import AutoModelForImageTextToText

        model = AutoModelForImageTextToText.from_pretrained(arguments.model, attn_implementation=arguments.attention)
    else:
        model = tiny_model(encoder, arguments.attention)
    model = model.to(device).train()
    guard(model, encoder)  # a model or a batch in which samples would see each other is an error
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), arguments.lr or (1e-5 if arguments.model else 2e-3))
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=arguments.dtype == "bfloat16")

    worker = WorkerConfig(rank=rank, world_size=num_ranks, num_workers=arguments.num_workers)
    loader = train_loader(arguments.dataset, encoder, worker)
    val = val_loader(arguments.dataset, encoder, worker, arguments.val)
    first = restore(newest(arguments.save), model, optimizer, loader) if arguments.resume else 0
    if first and rank == 0:
        print(f"goes on after step {first}", flush=True)
    stream, start = iter(loader), time.perf_counter()

    for step in range(first + 1, arguments.max_steps + 1):
        batch = next(stream).to(device, non_blocking=True)
        if arguments.ids:
            with open(f"{arguments.ids}.{rank}", "a") as file:
                print(json.dumps({"step": step, "ids": batch["sample_ids"]}), file=file)
        counts = torch.tensor([num_trained(batch), len(signals)], dtype=torch.float64).to(device)
        dist.all_reduce(counts)
        num_tokens, num_signals = counts.tolist()
        with autocast:
            # DDP takes the mean over ranks of what each divides by the mean number of tokens.
            share = max(num_tokens, 1) / num_ranks
            loss = parallel(**batch.model_inputs(model), num_items_in_batch=share).loss
            total = loss + touch_vision(model, batch)
        total.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        is_last = step == arguments.max_steps or num_signals > 0
        if step % 10 == 0 or is_last or step == 1:
            mean = loss.detach() / num_ranks
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {step}  loss {float(mean):.3f}  {time.perf_counter() - start:.1f} s", flush=True)
        if arguments.save and (step % arguments.save_every == 0 or is_last):
            save(arguments.save, step, model, optimizer, loader)
        if val is not None and (step % arguments.val_every == 0 or is_last):
            with autocast:  # ranks may have different numbers of packs: they meet after them
                sums = torch.tensor(evaluate(model, val), dtype=torch.float64).to(device)
            dist.all_reduce(sums)
            if rank == 0:
                print(f"step {step}  validation loss {float(sums[0] / sums[1]):.3f} over {int(sums[1]):,} tokens")
        if is_last:
            break


def main() -> None:
    arguments = arguments_of()
    dist.init_process_group("nccl" if arguments.device == "cuda" else "gloo")
    train(arguments)  # a function of its own: DDP has to be gone before the process group, or gloo's threads may hang
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
