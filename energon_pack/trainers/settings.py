"""The settings of trainers that break packs, each with the one that does not."""

from typing import Any

#: names of a trainer's arguments → (what is harmless, what goes wrong, the cure)
_KNOWN: dict[str, tuple[tuple[Any, ...], str]] = {
    "packing": ((False, None), "the trainer would pack packs again: packing=False"),
    "padding_free": ((False, None), "the trainer would flatten packs with positions of its own: padding_free=False"),
    "sample_packing": ((False, None), "the trainer would pack packs again: sample_packing: false"),
    "neat_packing": ((False, None), "the trainer would pack packs again: neat_packing: false"),
    "label_smoothing_factor": ((0.0, 0, None), "the loss is smoothed and divided batch by batch: label_smoothing_factor=0"),
    "use_asft_loss": (
        (False, None), "its reference model gets no positions, so that members see each other: use_asft_loss: false"
    ),
    "shift_attn": ((False, None), "LongLoRA's shifted attention crosses members: shift_attn: false"),
    "context_parallel_size": ((1, 0, None), "members of a pack are cut over ranks: context_parallel_size=1"),
    "sequence_parallel_size": ((1, 0, None), "members of a pack are cut over ranks: sequence_parallel_size=1"),
    "cp_size": ((1, 0, None), "members of a pack are cut over ranks: cp_size=1"),
}  # fmt: skip
_PARALLEL = ("cp_size", "sp_size")


def refused(args: Any, accelerator: Any = None) -> str:
    """Say which setting breaks packs, and what to set; empty: none that is known.

    Args:
        args: a trainer's arguments.
        accelerator: Accelerate's, whose parallelism cuts sequences.
    """
    for name, (harmless, told) in _KNOWN.items():
        value = getattr(args, name, None)
        if value not in harmless and told:
            return f"{name}={value}: {told}"
    if getattr(accelerator, "num_processes", 1) > 1 and getattr(args, "average_tokens_across_devices", True) is False:
        return "each rank divides by its own trained tokens: average_tokens_across_devices=True"
    parallelism = getattr(accelerator, "parallelism_config", None)
    for name in _PARALLEL:
        if (size := getattr(parallelism, name, 1) or 1) > 1:
            return f"{name}={size}: a sequence is cut over ranks, and masks are dropped, so that members see each other: {name}=1"
    return ""
