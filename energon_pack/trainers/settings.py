"""The settings of trainers that break packs, each with a value that does not."""

from typing import Any

from energon_pack.online.ranks import ranks_here

_CUT = "members of a pack would be cut over ranks, and see each other"
#: argument of a trainer → how any value that switches it on breaks packs
_BREAKS = {
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
_CUTS = ("context_parallel_size", "sequence_parallel_size", "cp_size", "sp_size")

#: module of a trainer's class → the setting with which it reads rows in their order
_IN_ORDER = {
    "swift": "train_dataloader_shuffle=False",
    "llamafactory": "disable_shuffling=True",
    "axolotl": "curriculum_sampling=True",
    "transformers": 'train_sampling_strategy="sequential"',
}


def refused(trainer: Any) -> str:
    """Say which setting of a trainer breaks packs, and what to set; empty: no known setting does."""
    args, accelerator = trainer.args, trainer.accelerator
    owners = (args, getattr(trainer, "finetuning_args", None))  # LLaMA-Factory's
    for name, told in _BREAKS.items():
        if value := next(filter(None, (getattr(owner, name, None) for owner in owners)), None):
            return f"{name}={value}: {told}: {name}={0 if isinstance(value, float) else False}"
    parallelism = getattr(accelerator, "parallelism_config", None)
    for name in _CUTS:
        if (size := max(getattr(owner, name, None) or 1 for owner in (args, parallelism))) > 1:
            return f"{name}={size}: {_CUT}: {name}=1"
    known, here = accelerator.num_processes, ranks_here()[1]
    if known < here:
        return (
            f"each of {here} processes trains by itself, for Accelerate knows of {known}: on a CPU use_cpu=True, or"
            " ACCELERATE_USE_CPU=true in the environment"
        )
    if known > 1 and getattr(args, "average_tokens_across_devices", True) is False:
        return "each rank divides by its own trained tokens: average_tokens_across_devices=True"
    return ""


def in_order(trainer: Any) -> str:
    """Return the setting with which a trainer reads rows in their order."""
    modules = {kind.__module__.partition(".")[0] for kind in type(trainer).__mro__}
    return next((setting for module, setting in _IN_ORDER.items() if module in modules), _IN_ORDER["transformers"])
