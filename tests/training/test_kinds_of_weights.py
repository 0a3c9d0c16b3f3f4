"""Weights of any kind train as without the guard, bit by bit, and right ones are not refused; others are, by name."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from energon_pack.training.forward_inputs import MixingError
from energon_pack.training.guards import guard
from support import kinds_of_weights as kinds
from support.attacks import mixed, on_norm
from support.environments import python_of
from support.running import ROOT
from support.tiny import make_batch, make_members, make_model

#: kinds that can't be equal, and what the refusal says
REFUSED = {
    "a_large_table": r"writes into model\.layers.* too large to be put back",
    "lazy": r"model\.layers\.\d\.mlp\.\w+\.weight has no values before a first forward",
    "dynamic_int8": "mixes the members of a batch: other words move their own outputs by .*, those of others by 0.2",
    "torchao_float8_by_tensors": "mixes the members of a batch: .* It first shows in .*Float8Linear",
}


def check(name: str, found: str) -> None:
    if name in REFUSED:
        with pytest.raises(MixingError, match=REFUSED[name]):
            raise MixingError(found)
    else:
        assert found.startswith("equal: "), found


@pytest.mark.slow
@pytest.mark.parametrize("make", kinds.OF_TORCH, ids=lambda make: make.__name__)
def test_a_kind_of_torch_trains_as_without_the_guard(make: kinds.Make) -> None:
    check(make.__name__, kinds.found_with(make))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_kinds_of_packages_train_as_without_the_guard(tmp_path: Path) -> None:
    """bitsandbytes, torchao, quanto, HQQ and PEFT's adapters themselves, on a CPU."""
    variables = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    try:
        python = python_of("weights")
    except OSError as error:
        pytest.skip(str(error))
    script = ROOT / "tests/support/kinds_of_weights.py"
    done = subprocess.run(
        [python, "-W", "ignore", script, tmp_path / "found"],
        env=variables,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    print(done.stdout)
    found = json.loads((tmp_path / "found").read_text())
    assert found.keys() == {*(make.__name__ for make in kinds.OF_PACKAGES), *kinds.ADAPTERS}
    for name, said in found.items():
        check(name, said)


# ------------------------------------------------------------------------------------------------------- in the small


class OfEightBits(nn.Module):
    """A product of inputs that are rounded to 8 bits and a sign, by a scale for each token."""

    def __init__(self, linear: Any):
        super().__init__()
        self.linear = linear

    def forward(self, x: Tensor) -> Any:
        scale = x.detach().abs().amax(-1, keepdim=True) / 255
        return self.linear(x + ((x / scale).round() * scale - x).detach())


def of_eight_bits(model: Any) -> Any:
    for layer in model.model.layers:
        for part in (layer.mlp, layer.self_attn):
            for name, linear in [*part.named_children()]:
                if isinstance(linear, nn.Linear):
                    setattr(part, name, OfEightBits(linear))
    return model


def with_spectral_norms(model: Any) -> Any:
    """Each forward goes on with what the one before left."""
    for layer in model.model.layers:
        nn.utils.parametrizations.spectral_norm(layer.mlp.up_proj)
    return model


def with_a_frozen_beginning(model: Any) -> Any:
    """Runs without gradients, so that no loss comes to the embeddings."""
    layer = model.model.layers[0]
    layer.forward = torch.no_grad()(layer.forward)
    return model


RIGHT: list[Callable[[Any], Any]] = [of_eight_bits, with_spectral_norms, with_a_frozen_beginning]


def run(model: Any, seed: int) -> Any:
    held = guard(model)
    rows = [make_members("llama", model, seed), make_members("llama", model, seed + 1)]
    model(**make_batch("llama", rows).model_inputs())
    held.remove()
    return held.trials[0]


@pytest.mark.parametrize("change", RIGHT, ids=lambda change: change.__name__)
def test_a_right_model_is_not_refused_and_mixes_no_less(change: Callable[[Any], Any]) -> None:
    """Rounding to codes makes 1 % of a difference in the seventh digit: such models were refused."""
    for seed in (0, 6):
        assert run(change(make_model("llama")), seed).is_conclusive
    model = change(make_model("llama"))
    on_norm(model, lambda x: mixed(x, 0.02))
    with pytest.raises(MixingError, match="mixes the members"):
        run(model, 0)
