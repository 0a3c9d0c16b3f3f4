"""Whether members are kept apart on a device, for `benchmarks/gpu.py`: a small model of the class, each attention."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from rich.table import Table
from timing import at_most

from energon_pack.training.members import Encoded
from energon_pack.training.probe import Finding, probe
from energon_pack.training.proof import Proof, prove
from energon_pack.training.small_model import small_model

#: what is tried; flash attention has no fp32
KINDS = (("eager", "fp32"), ("sdpa", "fp32"), ("sdpa", "bf16"), ("flash_attention_2", "bf16"))


def exactness(make: Any, config: Any, members: Sequence[Encoded], device: torch.device) -> Table:
    """A member changed must not move the others, and each must be as alone.

    Differences are a share of what the changed member moves itself: 1e-4 in fp32, 5e-2 in bf16 are none.

    Args:
        make: a class of transformers.
        config: of any size.
    """
    table = Table("members of a pack", "own", "others", "packed beside alone", "share of own", "goal, holds")
    with _true_fp32():
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
    share = _share(found)
    return [*(f"{value:.2g}" for value in (found.own, found.others, found.alone, share)), _goal(found)]


def _goal(found: Finding) -> str:
    return at_most(_share(found), found.tolerance) if found.own > 1e-5 else "NO: a change does not show"


def _share(found: Finding) -> float:
    return max(found.others, found.alone) / found.own if found.own else float("inf")


def _in_bfloat16(
    make: Any, config: Any, members: Sequence[Encoded], attention: str, device: torch.device
) -> Proof:
    """As `prove`, which takes float32 where an attention has it."""
    model = small_model(make, config, attention).to(device, torch.bfloat16)
    findings = [probe(model, members, changed=changed) for changed in range(len(members))]
    return Proof(make.__name__, attention, "positions", max(findings, key=_share))


@contextmanager
def _true_fp32() -> Iterator[None]:
    """Convolutions of fp32, such as those over patches, are of TF32 on a GPU by default: that is no leak."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before
