"""Whether members are kept apart on a device, for `benchmarks/gpu.py`: a small model of the class, each attention."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import torch
from rich.table import Table
from timing import at_most

from energon_pack.errors import one_line
from energon_pack.training.finding import BatchDifference, MaskTry
from energon_pack.training.member_encoder import Encoded
from energon_pack.training.proof import try_masks, try_small_model
from energon_pack.training.small_model import build_small_model

#: what is tried; flash attention has no fp32
KINDS = (
    ("eager", "fp32"),
    ("sdpa", "fp32"),
    ("sdpa", "bf16"),
    ("flash_attention_2", "bf16"),
    ("flex_attention", "bf16"),
)


def exactness(make: Any, config: Any, members: Sequence[Encoded], device: torch.device) -> Table:
    """Each member of a pack must be as alone: outputs, loss and gradients.

    Shares of 1e-4 in fp32 and 5e-2 in bf16 are no difference.

    Args:
        make: a class of transformers.
        config: of any size.
    """
    table = Table("members of a pack", "outputs", "loss", "gradients", "their size", "largest", "goal, holds")
    missing = {
        "flash_attention_2": "" if find_spec("flash_attn") else "flash-attn is not installed",
        "flex_attention": "" if make._supports_flex_attn else "transformers has none for this class",
    }
    with true_fp32():
        for attention, dtype in KINDS:
            if missing.get(attention):
                proof = MaskTry(make.__name__, attention, "positions", error=missing[attention])
            elif dtype == "bf16" and "flash" not in attention:
                proof = _in_bfloat16(make, config, members, attention, device)
            else:
                (proof,) = try_masks(make, config, members, "positions", attention, device=device)
            table.add_row(f"{attention}, {dtype}", *_cells(proof))
    return table


def _cells(proof: MaskTry) -> list[str]:
    found = proof.finding
    if found is None:
        return [*["–"] * 5, f"not tried: {proof.error[:100]}"]
    seen = (0.0, found.loss_difference, found.gradient_difference, found.size_difference, 0.0)
    values = zip((*found.differences, max(found.differences)), seen, strict=True)
    return [*("–" if first is None else f"{value:.2g}" for value, first in values), _goal(found)]


def _goal(found: BatchDifference) -> str:
    if not found.is_conclusive:
        return "NO: outputs show nothing"
    goal = at_most(max(found.differences), found.tolerance)
    return "NO: gradients reach other members" if found.mixes and "yes" in goal else goal


def _in_bfloat16(make: Any, config: Any, members: Sequence[Encoded], attention: str, device: torch.device) -> MaskTry:
    """As `prove`, which takes float32 where an attention has it."""
    proof = MaskTry(make.__name__, attention, "positions")
    try:
        model = build_small_model(make, config, attention).to(device, torch.bfloat16)
        return replace(proof, finding=try_small_model(model, members))
    except Exception as error:  # kernels that are compiled here may not be
        return replace(proof, error=one_line(error, 300))


@contextmanager
def true_fp32() -> Iterator[None]:
    """Convolutions of fp32, such as those over patches, are of TF32 on a GPU by default: that is no leak."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before
