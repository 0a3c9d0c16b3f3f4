"""A member of a pack comes out as it would alone: logits, loss and gradients, on transformers' own classes.

Alone means: with nothing of ours, the model's own positions and masks. `-s` prints the largest differences.
"""

from typing import Any

import pytest
import torch

from energon_pack.training.layout import IGNORE
from energon_pack.training.member_encoder import Encoded
from support.tiny import FAMILIES, alone, make_batch, make_members, make_model

CASES = [
    (name, attention)
    for name in FAMILIES
    for attention in ("sdpa", "eager")
    if name != "qwen3_5" and (name, attention) != ("gpt_oss", "sdpa")  # the one needs kernels, the other has no sdpa
]


def gradients(model: Any, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def split(logits: torch.Tensor, packs: list[list[Encoded]]) -> list[torch.Tensor]:
    """The logits of each member."""
    found = []
    for row, pack in zip(logits, packs, strict=True):
        lengths = [len(member.tokens) for member in pack]
        found += list(row[: sum(lengths)].split(lengths))
    return found


@pytest.mark.parametrize(("name", "attention"), CASES)
def test_packed_is_alone(name: str, attention: str) -> None:
    """In one row, in two rows of different length, and in rows wider than they need be."""
    model = make_model(name, attention)
    members = make_members(name, model)
    single = [alone(name, model, member) for member in members]
    trained = [int((member.tokens.labels[1:] != IGNORE).sum()) for member in members]
    losses = [out.loss * n for out, n in zip(single, trained, strict=True) if n]
    expected = torch.stack(losses).sum() / sum(trained)
    wanted = gradients(model, expected)
    for packs, width in (([members], None), ([members[:3], members[3:]], None), ([members], 150)):
        batch = make_batch(name, packs, width=width)
        out = model(**batch.model_inputs(model))
        logits = max(
            float((one - of.logits[0]).detach().abs().max())
            for one, of in zip(split(out.logits, packs), single, strict=True)
        )
        loss = float((out.loss - expected).detach().abs())
        found = gradients(model, out.loss)
        assert found.keys() == wanted.keys()
        largest = max(float(grad.abs().max()) for grad in wanted.values())
        grads = max(float((found[key] - wanted[key]).abs().max()) for key in wanted) / max(1.0, largest)
        print(f"{name} {attention} B={len(packs)} S={batch['input_ids'].shape[1]}", end=" ")
        print(f"logits {logits:.1e} loss {loss:.1e} gradients {grads:.1e}")
        assert max(logits, loss, grads) <= 1e-5


@pytest.mark.parametrize("name", ["qwen2_5_vl", "llama"])
def test_shifted_labels_give_the_same_loss(name: str) -> None:
    model = make_model(name)
    members = make_members(name, model)
    with torch.no_grad():
        losses = [model(**make_batch(name, [members], shifted=s).model_inputs()).loss for s in (False, True)]
    assert float((losses[0] - losses[1]).abs()) <= 1e-6
