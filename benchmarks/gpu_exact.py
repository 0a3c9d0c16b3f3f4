"""Whether members are kept apart on a device, for `benchmarks/gpu.py`: a small model of the class, each attention."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from rich.table import Table
from timing import at_most

from energon_pack.training.finding import Finding, Proof
from energon_pack.training.member_encoder import Encoded
from energon_pack.training.proof import prove, try_class
from energon_pack.training.small_model import small_model

#: what is tried; flash attention has no fp32
KINDS = (("eager", "fp32"), ("sdpa", "fp32"), ("sdpa", "bf16"), ("flash_attention_2", "bf16"))


def exactness(make: Any, config: Any, members: Sequence[Encoded], device: torch.device) -> Table:
    """Each member of a pack must be as alone: outputs, loss and gradients.

    Shares of 1e-4 in fp32 and 5e-2 in bf16 are no difference.

    Args:
        make: a class of transformers.
        config: of any size.
    """
    table = Table("members of a pack", "outputs", "loss", "gradients", "largest share", "goal, holds")
    with true_fp32():
        for attention, dtype in KINDS:
            if (attention, dtype) == ("sdpa", "bf16"):
                proof = _in_bfloat16(make, config, members, attention, device)
            else:
                (proof,) = prove(make, config, members, "positions", attention, device=device)
            table.add_row(f"{attention}, {dtype}", *_cells(proof))
    return table


def _cells(proof: Proof) -> list[str]:
    found = proof.finding
    if found is None:
        return [*["–"] * 4, f"not tried: {proof.error[:60]}"]
    return [*(f"{value:.2g}" for value in (*found.differences, max(found.differences))), _goal(found)]


def _goal(found: Finding) -> str:
    return at_most(max(found.differences), found.tolerance) if found.is_conclusive else "NO: outputs show nothing"


def _in_bfloat16(make: Any, config: Any, members: Sequence[Encoded], attention: str, device: torch.device) -> Proof:
    """As `prove`, which takes float32 where an attention has it."""
    model = small_model(make, config, attention).to(device, torch.bfloat16)
    return Proof(make.__name__, attention, "positions", try_class(model, members))


@contextmanager
def true_fp32() -> Iterator[None]:
    """Convolutions of fp32, such as those over patches, are of TF32 on a GPU by default: that is no leak."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before
