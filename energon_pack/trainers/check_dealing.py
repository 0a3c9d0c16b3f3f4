"""Find out which rows a trainer's loader deals to which rank, without reading a pack."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from energon_pack.errors import PackError, amount
from energon_pack.steps.topology import ranks_here
from energon_pack.trainers.collator import EPOCH_COLUMN
from energon_pack.trainers.samplers import PackSampler

_CUT_REASON = "members of a pack would be cut over ranks, and see each other"
#: argument of a trainer → how any value that switches it on breaks packs
_BREAKING_SETTINGS = {
    "packing": "the trainer would pack packs again",
    "padding_free": "the trainer would flatten packs, with positions of its own",
    "sample_packing": "the trainer would pack packs again",
    "neat_packing": "the trainer would pack packs again",
    "label_smoothing_factor": "the loss is smoothed, and divided batch by batch",
    "use_asft_loss": "its reference model gets no positions, so that members see each other",
    "use_dft_loss": "the loss of packs takes the place of this one",
    "use_eaft_loss": "the loss of packs takes the place of this one",
    "shift_attn": "LongLoRA's shifted attention crosses members",
}
#: arguments of a trainer, or of Accelerate's parallelism, that break packs if they are above 1
_SPLITTING_SETTINGS = ("context_parallel_size", "sequence_parallel_size", "cp_size", "sp_size")

#: module of a trainer's class → the setting with which it reads rows in their order
_ORDERINGS = {
    "swift": "train_dataloader_shuffle=False",
    "llamafactory": "disable_shuffling=True",
    "axolotl": "curriculum_sampling=True",
    "transformers": 'train_sampling_strategy="sequential"',
}


def find_setting_that_breaks_packs(trainer: Any) -> str:
    """Return which setting of a trainer breaks packs, and what to set instead; empty: no known setting does."""
    args, accelerator = trainer.args, trainer.accelerator
    owners = (args, getattr(trainer, "finetuning_args", None))  # LLaMA-Factory's
    for name, told in _BREAKING_SETTINGS.items():
        if value := next(filter(None, (getattr(owner, name, None) for owner in owners)), None):
            return f"{name}={value}: {told}: {name}={0 if isinstance(value, float) else False}"
    parallelism = getattr(accelerator, "parallelism_config", None)
    for name in _SPLITTING_SETTINGS:
        if (size := max(getattr(owner, name, None) or 1 for owner in (args, parallelism))) > 1:
            return f"{name}={size}: {_CUT_REASON}: {name}=1"
    known, here = accelerator.num_processes, ranks_here()[1]
    if known < here:
        return (
            f"each of {here} processes trains by itself, for Accelerate knows of {known}: on a CPU use_cpu=True, or"
            " ACCELERATE_USE_CPU=true in the environment"
        )
    if known > 1 and getattr(args, "average_tokens_across_devices", True) is False:
        return "each rank divides by its own trained tokens: average_tokens_across_devices=True"
    return ""


def find_setting_for_row_order(trainer: Any) -> str:
    """Return the setting that makes a trainer read rows in their order."""
    modules = {kind.__module__.partition(".")[0] for kind in type(trainer).__mro__}
    return next((setting for module, setting in _ORDERINGS.items() if module in modules), _ORDERINGS["transformers"])


#: most rows of an epoch that are checked
_MAX_CHECKED_ROWS = 1_000_000
_REMEDY = "train on packs.as_dataset() with the trainer's own sampler, which deals rows to ranks once"


def check_packs_dealt_to_ranks(trainer: Any, data_loader: Any) -> str:
    """Return a text on how a trainer's loader deals packs to ranks; PackError: some are dealt twice or never."""
    ranks: int = trainer.accelerator.num_processes
    data, kind = trainer.train_dataset, type(data_loader)
    if kind.__name__.endswith("Dispatcher"):
        if not kind.__module__.startswith("swift."):
            raise PackError(
                "one rank reads all batches and cuts each tensor for the others, positions [4, B, S], too:"
                ' accelerator_config={"dispatch_batches": False}'
            )
        if ranks > 1:
            raise PackError(
                f"rank 0 reads for all {ranks} ranks, and a stream gives it its own share alone: packs of the others"
                " are never trained on: LazyPackedDataset or packs on disk, which have a length"
            )
    epochs = _epoch_fault(trainer, data_loader)
    sampler = getattr(data_loader, "batch_sampler", None)
    if sampler is None or not hasattr(data, "__len__"):
        return f"a stream for {amount(ranks, 'rank')}{epochs}"
    if ranks > 1 and _has_pack_sampler(sampler):
        raise PackError(f"PackSampler deals packs to ranks, and Accelerate deals its share once more: {_REMEDY}")
    if len(data) > _MAX_CHECKED_ROWS:
        return f"{len(data):,} packs for {amount(ranks, 'rank')}{epochs}"
    with torch.random.fork_rng():  # a sampler that shuffles draws its seed
        of_rank = [[int(row) for row in batch] for batch in sampler]
    return check_dealt_rows(_gather_batches(of_rank, ranks), len(data), find_setting_for_row_order(trainer)) + epochs


def _epoch_fault(trainer: Any, loader: Any) -> str:
    """Return what is wrong with the epochs after the first, as text; empty: nothing."""
    data, args = trainer.train_dataset, trainer.args
    columns = getattr(data, "column_names", None) or ()
    num = getattr(args, "num_train_epochs", 1)
    if EPOCH_COLUMN in columns and getattr(args, "max_steps", -1) <= 0 and num > 1:
        return f"; {num:g} epochs read these rows again: as_dataset(epochs={num:g}) and num_train_epochs=1"
    if not hasattr(data, "set_epoch"):
        return ""
    heard: list[int] = []
    data.set_epoch = heard.append
    try:
        getattr(loader, "set_epoch", int)(1)
    finally:
        del data.set_epoch
    return "" if heard else "; set_epoch never arrives, so all epochs are the first: packs.as_dataset(epochs=…)"


def check_dealt_rows(dealt: Sequence[Sequence[Sequence[int]]], num: int, order_setting: str) -> str:
    """Return a text on how `num` rows are dealt, by `dealt[rank][batch]`; PackError: some come twice or never."""
    rows = [row for batches in dealt for batch in batches for row in batch]
    of_turn = len(dealt) * max((len(batch) for batches in dealt for batch in batches), default=0)
    twice, never = len(rows) - len({*rows}), num - len({*rows})
    if twice >= of_turn:
        raise PackError(f"{twice} of {num} packs are dealt twice: {_REMEDY}")
    if never >= of_turn:
        raise PackError(f"{never} of {num} packs reach no rank: {_REMEDY}")
    in_turn = [row for turn in zip(*dealt, strict=False) for batch in turn for row in batch]
    order = "in the order of as_dataset, so steps are even"
    if in_turn != sorted(in_turn):
        order = f"shuffled by the trainer, so steps are even by chance alone: {order_setting}"
    return f"{num} packs are dealt once to {amount(len(dealt), 'rank')}, {order}"


def _has_pack_sampler(sampler: Any) -> bool:
    """Say whether a sampler, or one inside Accelerate's wrappers, is a `PackSampler`."""
    while sampler is not None and not isinstance(sampler, PackSampler):
        sampler = getattr(sampler, "batch_sampler", None) or getattr(sampler, "sampler", None)
    return sampler is not None


def _gather_batches(of_rank: list[list[int]], ranks: int) -> list[list[list[int]]]:
    if ranks == 1:
        return [of_rank]
    every: list[Any] = [None] * ranks
    dist.all_gather_object(every, of_rank)
    return every
