"""Read a packed dataset with Energon and turn its packs into tokens, as a training job's data workers do.

    python recipes/read_packs.py packed/demo-qwen2_5_vl-neat-8192 --processor FOLDER_OR_HUB_ID

For each pack: the members' images as PIL, their tokens by the very function that measured them, and a check that
both lengths agree. Runs on a CPU, with any number of workers.
"""

import argparse

from megatron.energon import WorkerConfig, get_savable_loader, get_train_dataset

from energon_pack import MemberInput, Template, inputs_of, load_template, sample_of


def member_tokens(template: Template, member: MemberInput) -> list[int]:
    """Token ids of one member of a pack of any flavour, the placeholders of its media expanded."""
    return template.encode(sample_of(member)).ids


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="folder of a packed dataset")
    parser.add_argument(
        "--processor", help="folder or hub id; default: as when it was packed, else the model's published one"
    )
    parser.add_argument("--num-workers", type=int, default=0)
    arguments = parser.parse_args()

    template = load_template(arguments.dataset, arguments.processor)
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
    num_packs = num_members = num_tokens = num_images = 0
    for pack in get_savable_loader(dataset):
        for member in inputs_of(pack):
            ids = member_tokens(template, member)
            if len(ids) != member.token_len:
                raise ValueError(f"{member.sample_id}: {len(ids)} tokens in training, {member.token_len} measured")
            num_tokens += len(ids)
            num_images += len([image.load() for image in member.images])
        num_packs += 1
        num_members += len(pack.token_lens)
    print(
        f"{num_packs} packs, {num_members} members, {num_images} images, {num_tokens:,} tokens: all lengths as measured"
    )


if __name__ == "__main__":
    main()
