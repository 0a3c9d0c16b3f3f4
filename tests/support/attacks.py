"""What attacks on a tiny model are made of: they mix its tokens, or the gradients of them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Function: Any = torch.autograd.Function


def on_norm(model: Any, change: Callable[[Tensor], Any]) -> Any:
    return model.model.norm.register_forward_hook(lambda _, __, out: change(out))


def mixed(x: Tensor, share: float = 0.1) -> Tensor:
    """Add the mean of the row to each of its tokens."""
    return x + share * x.mean(1, keepdim=True)


class Turned(Function):
    """Nothing; its backward is a function's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, turn: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.turn = turn
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return ctx.turn(grad), None
