"""Find out which rows a trainer's loader deals to which rank, without reading a pack."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from energon_pack.errors import PackError, amount
from energon_pack.samplers import PackSampler

#: rows of an epoch that are looked at
_MOST = 1_000_000


def dealing_of(trainer: Any, loader: Any) -> str:
    """Say how packs are dealt.

    Args:
        trainer: of transformers.
        loader: its loader, as it came from `get_train_dataloader`.

    Raises:
        PackError: packs are dealt twice, or to one rank alone; or batches are cut by dispatching.
    """
    ranks = trainer.accelerator.num_processes
    if type(loader).__name__.endswith("Dispatcher"):
        raise PackError(
            "rank 0 reads all batches and cuts them for the others, positions [4, B, S] as well:"
            ' accelerator_config={"dispatch_batches": False}'
        )
    sampler = getattr(loader, "batch_sampler", None)
    if sampler is None:
        return f"a stream, {amount(ranks, 'rank')}"
    if ranks > 1 and _has_pack_sampler(loader):
        raise PackError(
            "PackSampler deals packs to ranks, and Accelerate deals its share once more:"
            " train on packs.as_dataset() with the trainer's own sampler"
        )
    try:
        num = len(trainer.train_dataset)
    except TypeError:
        return f"a stream, {amount(ranks, 'rank')}"
    if num > _MOST:
        return f"{num:,} packs, {amount(ranks, 'rank')}"
    with torch.random.fork_rng():  # a sampler that shuffles draws its seed
        own = [[int(row) for row in batch] for batch in sampler]
    return _said(_gathered(own, ranks), num)


def _said(dealt: Sequence[Sequence[Sequence[int]]], num: int) -> str:
    """Say how rows are dealt.

    Args:
        dealt: of each rank its batches of rows.
        num: rows of the dataset.
    """
    counts = Counter(row for batches in dealt for batch in batches for row in batch)
    twice = sum(1 for count in counts.values() if count > 1)
    over = max(len(batch) for batches in dealt for batch in batches) * len(dealt)
    if twice >= over:
        raise PackError(
            f"{twice} of {num} packs are dealt to several ranks: a rank-aware sampler is dealt to none twice"
        )
    if num - len(counts) >= over:
        raise PackError(
            f"{num - len(counts)} of {num} packs reach no rank: a sampler that knows ranks is dealt to ranks once more;"
            " train on packs.as_dataset() with the trainer's own sampler"
        )
    together = [row for turn in zip(*dealt, strict=False) for batch in turn for row in batch]
    in_order = together == sorted(together)
    order = (
        "in the order of as_dataset, so steps are even"
        if in_order
        else (
            'shuffled by the trainer, so steps are even by chance alone (train_sampling_strategy="sequential" keeps the order)'
        )
    )
    return f"{num} packs are dealt once to {amount(len(dealt), 'rank')}, {order}"


def _has_pack_sampler(loader: Any) -> bool:
    """Whether a sampler inside Accelerate's wrappers is one that knows ranks."""
    sampler = loader.batch_sampler
    while sampler is not None:
        if isinstance(sampler, PackSampler):
            return True
        sampler = getattr(sampler, "batch_sampler", None) or getattr(sampler, "sampler", None)
    return False


def _gathered(own: list[list[int]], ranks: int) -> list[list[list[int]]]:
    """Return the batches of each rank."""
    if ranks == 1:
        return [own]
    every: list[Any] = [None] * ranks
    dist.all_gather_object(every, own)
    return every
