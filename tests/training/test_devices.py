"""What a batch makes on its device is made there.

No test has a GPU: tensors are fake here, and PyTorch refuses to compute with fake tensors of two devices, as CUDA does.
`lazy` is the only other device that a PyTorch for CPUs has.
"""

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from energon_pack.training.batch import PackedBatch
from energon_pack.training.layout import RowForm, neat
from energon_pack.training.masks import Outline, Sight
from support.tiny import text_members

DEVICE = torch.device("lazy")


@pytest.mark.parametrize("mask", ["positions", "hybrid", "dict4d", "prefix4d"])
def test_inputs_are_made_on_the_device_of_the_batch(mask: str) -> None:
    """`hybrid` numbered members on the CPU: on a GPU `guard` refused every class with a state, and training stopped."""
    made = neat([[member.tokens for member in text_members(64)]], RowForm())
    outline = Outline("Tiny", False, None, 4, 4, Sight.IN_WINDOWS, torch.float32, DEVICE)
    with FakeTensorMode(shape_env=ShapeEnv()) as fake:
        batch = PackedBatch({k: fake.from_tensor(v) if isinstance(v, Tensor) else v for k, v in made.items()})
        batch.mask = mask
        inputs = batch.to(DEVICE).model_inputs(outline)
    masks = inputs["attention_mask"] if isinstance(inputs.get("attention_mask"), dict) else {}
    tensors = {name: value for name, value in {**inputs, **masks}.items() if isinstance(value, Tensor)}
    assert len(tensors) > 3
    assert {name: value.device.type for name, value in tensors.items()} == dict.fromkeys(tensors, "lazy")
