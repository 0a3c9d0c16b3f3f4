"""Train the tiny model of train_tiny.py on samples as they are, each a row of its own, beside the same samples packed.

    python recipes/train_unpacked.py +model=qwen2_5_vl packing.max_token_len=2048
    python recipes/train_unpacked.py +model=qwen2_5_vl source.path=my.jsonl model.processor=FOLDER --max-steps 100

Settings are those of packing; nothing is written but the cache of lengths. A batch has at most `packing.max_token_len`
places in each of the three ways, padding counted: samples that come by chance, samples of like lengths
(`LengthGroupedSampler`), and a pack. Prints the loss, tokens a second (of samples, not of padding) and the padding of
each. Under torchrun each rank gets its share of the batches, as many as all others.
"""

import argparse
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader
from train_tiny import fell, tiny_model, train

from energon_pack import LazyPackedDataset, LengthGroupedSampler, PackedBatch, PackSampler, guard


def endless(loader: DataLoader[Any]) -> Iterator[PackedBatch]:
    """Epoch after epoch: the samplers go on by themselves."""
    while True:
        yield from loader


def loaders(overrides: list[str], num_workers: int = 0) -> Iterator[tuple[str, LazyPackedDataset, DataLoader[Any]]]:
    """The three ways, by name."""
    # A pack of one member is a sample, and a batch of such is padded to its longest.
    samples = LazyPackedDataset([*overrides, "packing.max_members=1"], layout="neat")
    lens, max_batch_tokens = samples.lens(), samples.config.packing.max_token_len
    for name, window in (("by chance", 1), ("grouped  ", 128)):
        sampler = LengthGroupedSampler(lens, max_batch_tokens=max_batch_tokens, window=window)
        loader = DataLoader(samples, batch_sampler=sampler, collate_fn=samples.collate, num_workers=num_workers)
        yield name, samples, loader
    packs = LazyPackedDataset(overrides, layout="neat")
    order: Any = PackSampler(packs)
    yield "packed   ", packs, DataLoader(packs, 1, sampler=order, collate_fn=packs.collate, num_workers=num_workers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="+", help="settings of packing, as on its command line")
    parser.add_argument("--max-steps", type=int, default=30)
    parser.add_argument("--num-workers", type=int, default=0)
    arguments = parser.parse_args()
    for name, samples, loader in loaders(arguments.overrides, arguments.num_workers):
        model = tiny_model(samples.encoder)
        guard(model, samples.encoder)  # a model or a batch in which samples would see each other is an error
        _, losses = train(name, endless(loader), model, arguments.max_steps)
        if not fell(losses):
            raise SystemExit(f"{name}: the loss did not fall")


if __name__ == "__main__":
    main()
