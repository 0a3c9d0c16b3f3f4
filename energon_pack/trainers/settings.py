"""The settings of trainers that break packs, each with the one that does not."""

from typing import Any

_CUT = "members of a pack would be cut over ranks, and see each other"
#: argument of a trainer → what a value that asks for anything does to packs
_BREAKS = {
    "packing": "the trainer would pack packs again",
    "padding_free": "the trainer would flatten packs, with positions of its own",
    "sample_packing": "the trainer would pack packs again",
    "neat_packing": "the trainer would pack packs again",
    "label_smoothing_factor": "the loss is smoothed, and divided batch by batch",
    "use_asft_loss": "its reference model gets no positions, so that members see each other",
    "shift_attn": "LongLoRA's shifted attention crosses members",
}
#: argument of a trainer, or of Accelerate's parallelism → the same of a value above 1
_CUTS = ("context_parallel_size", "sequence_parallel_size", "cp_size", "sp_size")


def refused(args: Any, accelerator: Any = None) -> str:
    """Say which setting breaks packs, and what to set; empty: none that is known.

    Args:
        args: a trainer's arguments.
        accelerator: Accelerate's.
    """
    for name, told in _BREAKS.items():
        if value := getattr(args, name, None):
            return f"{name}={value}: {told}: {name}={0 if isinstance(value, float) else False}"
    parallelism = getattr(accelerator, "parallelism_config", None)
    for name in _CUTS:
        if (size := max(getattr(owner, name, None) or 1 for owner in (args, parallelism))) > 1:
            return f"{name}={size}: {_CUT}: {name}=1"
    is_apart = getattr(args, "average_tokens_across_devices", True) is False
    if is_apart and getattr(accelerator, "num_processes", 1) > 1:
        return "each rank divides by its own trained tokens: average_tokens_across_devices=True"
    return ""
