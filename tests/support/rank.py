"""One rank of a training that trains nothing: `python rank.py BLEND PACKED PROCESSOR FOLDER RANK NUM_STEPS [STATE]`.

Each step it writes down its samples, and meets the other ranks in a gloo all-reduce; after step 5 the state of all
ranks is saved by Energon's own collective. With STATE it goes on from there.
"""

import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.energon import WorkerConfig, get_savable_loader, get_train_dataset

from energon_pack.task_encoder import PackedTaskEncoder

SAVED_AFTER, NUM_RANKS = 5, 2


def main() -> None:
    warnings.filterwarnings("ignore")
    blend, packed, processor, folder, rank_text, num_steps, *state = sys.argv[1:]
    rank = int(rank_text)
    meeting = f"file://{folder}/{'again' if state else 'first'}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=NUM_RANKS)
    worker = WorkerConfig(rank=rank, world_size=NUM_RANKS, num_workers=2)
    dataset = get_train_dataset(
        blend,
        worker_config=worker,
        batch_size=1,
        shuffle_buffer_size=5,
        max_samples_per_sequence=10,
        task_encoder=PackedTaskEncoder(packed, processor),
    )
    loader = get_savable_loader(dataset)
    if state:
        loader.restore_state_global(torch.load(state[0], weights_only=False))
    first = SAVED_AFTER if state else 0
    stream = iter(loader)
    with open(Path(folder, f"{'again' if state else 'first'}-{rank}.txt"), "w") as ids:
        for step in range(first, int(num_steps)):
            batch = next(stream)
            trained = (batch["labels"] != -100).sum()
            dist.all_reduce(trained)
            ids.write(f"{step} {batch['sample_ids']} {int(trained)}\n")
            ids.flush()
            if step + 1 == SAVED_AFTER:
                saved = loader.save_state_global(global_dst_rank=0)
                if rank == 0:
                    torch.save(saved, Path(folder, "state.tmp"))
                    Path(folder, "state.tmp").rename(Path(folder, "state.pt"))
                dist.barrier()


if __name__ == "__main__":
    main()
