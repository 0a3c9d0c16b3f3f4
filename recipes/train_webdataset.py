"""Data-parallel training on packs that webdataset reads: a plain DataLoader under torchrun, without Energon's loader.

    torchrun --nproc-per-node 2 recipes/train_webdataset.py packed/demo --processor FOLDER --max-steps 100

It trains the tiny random Qwen2.5-VL of train_tiny.py on a CPU, by the step of train_ddp.py: the loss is divided by what
all ranks train together. What to take over from it is `batches`:

- webdataset deals whole shards to ranks and their workers, which need one each: pack with a lower
  `output.max_shard_packs` where there are too few.
- A rank's shards hold more packs or fewer than another's, so that epochs end at different steps. Each rank therefore
  goes round its own without end, and steps are counted: no rank waits for one that has nothing left.
- webdataset keeps no place in the stream: a run that goes on begins anew. `train_ddp.py` goes on where it was, with
  Energon's loader.
"""

import argparse
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
import webdataset as wds
from packed_data import parts
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from train_ddp import backward
from train_tiny import evaluate, fell, tiny_model

from energon_pack import PackedBatch, Packs, guard, packs, shard_urls


def batches(
    dataset: Path, encoded: Packs, batch_size: int = 1, num_workers: int = 0, shuffle: int = 100, seed: int = 0
) -> Iterator[PackedBatch]:
    """Batches of the train part without end; each epoch in another order, which the seed alone says.

    Args:
        shuffle: packs that wait in a worker to be drawn from: before they are encoded, when they are small.
    """
    by_seed = {"detshuffle": True, "seed": seed}  # `shardshuffle` alone has the same order in each epoch
    shards = wds.WebDataset(shard_urls(dataset), shardshuffle=100, nodesplitter=wds.split_by_node, **by_seed)
    stream = shards.compose(wds.detshuffle(shuffle, seed=seed), encoded).repeat()
    return iter(DataLoader(stream, batch_size, collate_fn=encoded.collate, num_workers=num_workers))


def val_batches(dataset: Path, encoded: Packs) -> DataLoader[PackedBatch]:
    """The part `val`, once through; all of it for whoever asks."""
    shards = wds.WebDataset(shard_urls(dataset, "val"), shardshuffle=False, nodesplitter=None, workersplitter=None)
    return DataLoader(shards.compose(encoded), 1, collate_fn=encoded.collate)


def train(arguments: argparse.Namespace) -> None:
    """All steps of this rank."""
    rank, dataset = dist.get_rank(), arguments.dataset
    # A pack of text alone has a blank image that no token sees: every rank has gradients for every parameter.
    encoded = packs(dataset, arguments.processor, layout="neat", dummy_image=True)
    model = tiny_model(encoded.encoder)
    guard(model, encoded.encoder)  # a model or a batch in which samples would see each other is an error
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    stream = batches(dataset, encoded, arguments.batch_size, arguments.num_workers)
    losses = []
    for step in range(1, arguments.max_steps + 1):
        losses_of_step = backward(parallel, model, list(islice(stream, arguments.accumulate)), torch.float32, [])
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(losses_of_step[0] / losses_of_step[1]))
        if rank == 0 and (step % 10 == 0 or step in (1, arguments.max_steps)):
            print(f"step {step}  loss {losses[-1]:.3f}", flush=True)
    if not fell(losses):
        raise SystemExit("the loss did not fall")
    if rank == 0 and "val" in parts(dataset):
        loss_sum, weight = evaluate(model, val_batches(dataset, encoded))
        print(f"validation loss {loss_sum / weight:.3f} over {weight:,.0f} tokens by weight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path, help="folder of a packed dataset")
    parser.add_argument("--processor", help="folder or hub id; default: the files that the dataset holds")
    parser.add_argument("--max-steps", type=int, default=50)
    parser.add_argument("--batch-size", type=int, default=1, metavar="PACKS", help="rows of a batch (1)")
    parser.add_argument("--accumulate", type=int, default=1, metavar="BATCHES", help="of each rank in a step (1)")
    parser.add_argument("--num-workers", type=int, default=1, help="of each rank (1)")
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    train(arguments)  # a function of its own: DDP has to be gone before the process group, or gloo's threads may hang
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
