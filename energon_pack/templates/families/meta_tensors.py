"""Tensors with a shape and no values, to run code only for its shapes.

torch's own `meta` device has three drawbacks: a kernel takes up to 90 µs; small tensors that such code makes for itself
(grids, tables of sizes) have no values, either; and numpy does not take such tensors. Here only pixels have no values,
and operations on them do nothing.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate
from torch.overrides import TorchFunctionMode

_MAX_REAL_ELEMENTS = 1 << 16  # elements of a tensor that is made with values
_META_DEVICE = torch.device("meta")


class ShapesOnly(TorchFunctionMode):
    """In this context, code runs only for its shapes: pixels on the device `meta` have no values, other tensors do."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if (quick := _SHAPE_FUNCTIONS.get(func)) is not None:
            shaped = quick(*args, **kwargs)
            if shaped is not NotImplemented:
                return shaped
        if func in _CREATORS and kwargs.get("device") is not None and torch.device(kwargs["device"]) == _META_DEVICE:
            size = kwargs.get("size", args[0] if args and isinstance(args[0], (list, tuple)) else args)
            if func not in _CREATORS_BY_SIZE or math.prod(size) <= _MAX_REAL_ELEMENTS:
                kwargs = {**kwargs, "device": None}
        try:
            return func(*args, **kwargs)
        except RuntimeError:
            moved = _moved_to_meta((args, kwargs))
            if moved is None:
                raise
            return func(*moved[0], **moved[1])


def meta_tensor(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return a tensor without values, on the device `meta`; made in 2 µs."""
    strides = [1] * len(shape)
    for dim in range(len(shape) - 2, -1, -1):
        strides[dim] = strides[dim + 1] * shape[dim + 1]
    return torch.empty_strided(tuple(shape), strides, dtype=dtype, device=_META_DEVICE)


def _moved_to_meta(value: Any) -> Any:
    """Return arguments with all their tensors on `meta`; None: they were on one device already."""
    devices: set[bool] = set()

    def moved(item: Any) -> Any:
        if isinstance(item, Tensor):
            devices.add(item.is_meta)
            return item.to(_META_DEVICE)
        if isinstance(item, (list, tuple)):
            return type(item)(map(moved, item))
        return {name: moved(entry) for name, entry in item.items()} if isinstance(item, dict) else item

    result = moved(value)
    return result if len(devices) == 2 else None


def _as_it_is(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Skip an operation that would change only values."""
    return tensor if tensor.is_meta else NotImplemented


def _resized(tensor: Tensor, size: Any = None, *args: Any, **kwargs: Any) -> Any:
    if not tensor.is_meta or size is None:
        return NotImplemented
    sides = size if isinstance(size, (list, tuple)) else [size] * (tensor.dim() - 2)
    if len(sides) != tensor.dim() - 2 or not all(isinstance(side, int) and side > 0 for side in sides):
        return NotImplemented  # torch reports the error
    return meta_tensor([*tensor.shape[:2], *sides], tensor.dtype)


def _stacked(tensors: Any, dim: int = 0, **kwargs: Any) -> Any:
    if kwargs or not _have_one_type(tensors) or any(tensor.shape != tensors[0].shape for tensor in tensors):
        return NotImplemented
    shape = [*tensors[0].shape]
    if not -len(shape) - 1 <= dim <= len(shape):
        return NotImplemented
    shape.insert(dim if dim >= 0 else dim + len(shape) + 1, len(tensors))
    return meta_tensor(shape, tensors[0].dtype)


def _concatenated(tensors: Any, dim: int = 0, **kwargs: Any) -> Any:
    if kwargs or not _have_one_type(tensors) or any(tensor.dim() != tensors[0].dim() for tensor in tensors):
        return NotImplemented
    shape = [*tensors[0].shape]
    shape[dim] = sum(tensor.shape[dim] for tensor in tensors)
    rest = [side for i, side in enumerate(shape) if i != dim % len(shape)]
    if any([side for i, side in enumerate(t.shape) if i != dim % len(shape)] != rest for t in tensors):
        return NotImplemented
    return meta_tensor(shape, tensors[0].dtype)


def _have_one_type(tensors: Any) -> bool:
    """Say whether these are tensors of one type, at least one of them without values."""
    if not isinstance(tensors, (list, tuple)) or not tensors:
        return False
    return any(tensor.is_meta for tensor in tensors) and len({tensor.dtype for tensor in tensors}) == 1


def _constant_array(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Return a numpy array that repeats one value, in the shape of a tensor without values."""
    if not tensor.is_meta:
        return NotImplemented
    one = torch.zeros((), dtype=tensor.dtype).numpy()
    return np.broadcast_to(one, tuple(tensor.shape))


def _empty_like(tensor: Tensor, *args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Any:
    return meta_tensor(tensor.shape, dtype or tensor.dtype) if tensor.is_meta else NotImplemented


#: functions that take a size
_CREATORS_BY_SIZE = {torch.zeros, torch.ones, torch.full, torch.empty}
_CREATORS = {torch.tensor, torch.as_tensor, torch.arange, torch.linspace, *_CREATORS_BY_SIZE}
_SHAPE_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    interpolate: _resized,
    torch.stack: _stacked,
    torch.cat: _concatenated,
    **dict.fromkeys((torch.zeros_like, torch.ones_like, torch.empty_like, torch.full_like), _empty_like),
    Tensor.numpy: _constant_array,
    Tensor.__array__: _constant_array,
    **dict.fromkeys((Tensor.clamp_, Tensor.round_, Tensor.mul_, Tensor.div_, Tensor.sub_, Tensor.add_), _as_it_is),
    Tensor.cpu: _as_it_is,
}
