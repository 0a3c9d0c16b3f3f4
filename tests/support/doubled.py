"""A model of transformers in float64, with the steps that it always makes in float32: no difference is rounding."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import Module, functional

_softmax = functional.softmax


def _soft(values: Tensor, dim: int | None = None, dtype: torch.dtype | None = None) -> Tensor:
    return _softmax(values, dim, dtype=torch.float64 if dtype is torch.float32 else dtype)


@contextmanager
def doubled(model: Module) -> Iterator[None]:
    """Within, a model and its inputs are in float64."""

    def inputs_too(_: Module, given: Any, inputs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        own = {k: v.double() if torch.is_tensor(v) and v.is_floating_point() else v for k, v in inputs.items()}
        return given, own

    model.double()
    handle = model.register_forward_pre_hook(inputs_too, with_kwargs=True)
    try:
        with patch.object(Tensor, "float", Tensor.double), patch.object(functional, "softmax", _soft):
            yield
    finally:
        handle.remove()
        model.float()
