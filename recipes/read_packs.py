"""Read a packed dataset with Energon: the tokens that were written, which of them are trained, and the media.

    python recipes/read_packs.py packed/demo-qwen2_5_vl-neat-8192

Nothing is rendered or tokenized, so no processor is needed. Runs on a CPU, with any number of workers.
"""

import argparse

from megatron.energon import WorkerConfig, get_savable_loader, get_train_dataset

from energon_pack import inputs_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="folder of a packed dataset")
    parser.add_argument("--num-workers", type=int, default=0)
    arguments = parser.parse_args()

    dataset = get_train_dataset(
        arguments.dataset,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=arguments.num_workers),
        batch_size=None,  # one pack at a time
        shuffle_buffer_size=None,  # packs are in random order already
        shuffle_over_epochs_multiplier=None,
        parallel_shard_iters=1,
        max_samples_per_sequence=None,
        repeat=False,  # one epoch
    )
    num_packs = num_members = num_tokens = num_trained = num_images = 0
    for pack in get_savable_loader(dataset):
        for member in inputs_of(pack):
            tokens = member.tokens  # .ids: int64 [L]; .supervised: trained ranges of them; .weights, .media
            if tokens is None:
                raise ValueError(f"{member.sample_id} has no tokens: another tool packed it")
            num_tokens += len(tokens)
            num_trained += tokens.num_supervised
            num_images += len([image.load() for image in member.images])
            num_members += 1
        num_packs += 1
    print(
        f"{num_packs} packs, {num_members} members, {num_images} images, {num_tokens:,} tokens,"
        f" {num_trained:,} of them trained"
    )


if __name__ == "__main__":
    main()
