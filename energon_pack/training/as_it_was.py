"""Run a model only to look at it, and put its state back afterwards."""

import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module

#: elements; a larger buffer holds weights (GPTQ, AWQ), which no forward changes
_MOST = 2**20
_PLAIN = (bool, int, float, type(None), Tensor)


@contextmanager
def as_it_was(model: Module) -> Iterator[Callable[[], None]]:
    """Run without gradients, then restore random numbers, buffers, counters and modes of all parts.

    Yields:
        A function to call before each run, so that every run draws the same random numbers and dropout drops the same.
    """
    parts = [*model.modules()]
    plain = [{name: value for name, value in vars(part).items() if isinstance(value, _PLAIN)} for part in parts]
    buffers = [dict(part._buffers) for part in parts]
    before = {
        id(buffer): (buffer._version, buffer.detach().clone())
        for own in buffers
        for buffer in own.values()
        if buffer is not None and buffer.numel() <= _MOST
    }
    host = random.getstate(), np.random.get_state()
    on_gpu = sorted({parameter.device.index for parameter in model.parameters() if parameter.device.type == "cuda"})

    def begin_again() -> None:
        random.setstate(host[0])
        np.random.set_state(host[1])
        torch.manual_seed(0)

    try:
        with torch.random.fork_rng(on_gpu), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # checkpointing warns that no input needs gradients
            yield begin_again
    finally:
        random.setstate(host[0])
        np.random.set_state(host[1])
        for part, values, own in zip(parts, plain, buffers, strict=True):
            for name, value in values.items():
                if vars(part).get(name) is not value:
                    vars(part)[name] = value
            part._buffers.update(own)
        for buffer in (buffer for own in buffers for buffer in own.values() if buffer is not None):
            version, content = before.get(id(buffer), (buffer._version, buffer))
            if buffer._version != version:
                with torch.no_grad():
                    buffer.copy_(content)
        torch.clear_autocast_cache()  # its copies of weights were made without gradients
