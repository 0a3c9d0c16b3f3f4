"""Run a model only to look at it, and put its state back afterwards."""

import random
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn import Module
from torch.nn.modules.dropout import _DropoutNd

from energon_pack.training.model_wrappers import configs_in

#: elements; a larger buffer holds weights (GPTQ, AWQ), which no forward changes
_MAX_BUFFER_ELEMENTS = 2**20
_PLAIN_TYPES = (bool, int, float, type(None), Tensor)
#: names of rates of randomness in training
_RATE_NAMES = re.compile("drop|jitter")


@contextmanager
def restored(model: Module) -> Iterator[Callable[[int], None]]:
    """Restore a model's modes, counters, caches and buffers, and all random number states, when the block ends.

    Yields:
        A function to call before each run. It resets the random numbers by a seed: runs with one seed have the same
        dropout.
    """
    every = [*model.modules()]
    plain = [{name: value for name, value in vars(part).items() if isinstance(value, _PLAIN_TYPES)} for part in every]
    kept = [(value, value.copy()) for part in every for name, value in vars(part).items() if _is_cache(name, value)]
    buffers = [dict(part._buffers) for part in every]
    before = {
        id(buffer): (buffer._version, buffer.detach().clone())
        for of_part in buffers
        for buffer in of_part.values()
        if buffer is not None and buffer.numel() <= _MAX_BUFFER_ELEMENTS
    }
    host = random.getstate(), np.random.get_state()
    on_gpu = sorted({parameter.device.index for parameter in model.parameters() if parameter.device.type == "cuda"})

    def begin_again(seed: int = 0) -> None:
        random.setstate(host[0])
        np.random.set_state(host[1])
        if seed:
            random.seed(seed)
            np.random.seed(seed)
        torch.manual_seed(seed)

    try:
        with torch.random.fork_rng(on_gpu), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # checkpointing warns that no input needs gradients
            yield begin_again
    finally:
        random.setstate(host[0])
        np.random.set_state(host[1])
        for part, values, of_part in zip(every, plain, buffers, strict=True):
            for name, value in values.items():
                if vars(part).get(name) is not value:
                    vars(part)[name] = value
            part._buffers.update(of_part)
        for cache, content in kept:
            cache.clear()
            cache.extend(content) if isinstance(cache, list) else cache.update(content)
        for buffer in (buffer for of_part in buffers for buffer in of_part.values() if buffer is not None):
            version, old = before.get(id(buffer), (buffer._version, buffer))
            if buffer._version != version:
                with torch.no_grad():
                    buffer.copy_(old)
        torch.clear_autocast_cache()  # its copies of weights were made for other graphs


def _is_cache(name: str, value: Any) -> bool:
    """Say whether a module's attribute may hold results of its runs: a dict, list or set that is not torch's own."""
    return type(value) in (dict, list, set) and name not in Module.__annotations__ and not name.endswith("_hooks")


def zero_random_rates(model: Any) -> list[tuple[Any, str, float]]:
    """Set all dropout and jitter rates of a model and its configs to 0; return (owner, attribute, old rate) of each."""
    configs = configs_in(model.config) if hasattr(getattr(model, "config", None), "get_text_config") else ()
    rates = [
        (part, name, value)
        for part in (*model.modules(), *configs)
        for name, value in vars(part).items()
        if isinstance(value, float)
        and value
        and (_RATE_NAMES.search(name) or (name == "p" and isinstance(part, _DropoutNd)))
    ]
    for part, name, _ in rates:
        setattr(part, name, 0.0)
    return rates


@contextmanager
def without_dropout(model: Any) -> Iterator[None]:
    """Set all dropout and jitter rates of a model to 0 while the block runs, then restore them."""
    rates = zero_random_rates(model)
    try:
        yield
    finally:
        for part, name, value in rates:
            setattr(part, name, value)


@contextmanager
def full_precision() -> Iterator[None]:
    """Compute float32 products without TF32 while the block runs: rounded products would look like mixed samples."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def is_sharded(model: Module) -> bool:
    """Say whether a model's parameters are sharded over ranks: by FSDP, tensor parallelism or DeepSpeed's ZeRO 3."""
    if not dist.is_available() or not dist.is_initialized():
        return False
    if any(isinstance(part, (FSDPModule, FullyShardedDataParallel)) for part in model.modules()):
        return True
    return any(isinstance(one, DTensor) or hasattr(one, "ds_id") for one in model.parameters())


@contextmanager
def forward_suspended(part: Module) -> Iterator[Callable[..., Any]]:
    """Suspend FSDP2's pending forward while the block runs; yield a function that runs the part with other inputs."""
    every = {id(state): state for one in part.modules() for state in _fsdp_states(one)}
    pending = [state for state in every.values() if state._training_state.name == "FORWARD"]
    within = {*part.modules()}
    outer = [state for state in pending if state._modules[0] not in within]  # its hooks do not run with the part
    for state in pending:
        state._post_forward(state._modules[0], (), None)

    def call(**inputs: Any) -> Any:
        for state in outer:
            state._pre_forward(state._modules[0], (), {})
        output = part(**inputs)
        for state in reversed(outer):
            output = state._post_forward(state._modules[0], (), output)
        return output

    try:
        yield call if outer else part
    finally:
        for state in pending:
            state._pre_forward(state._modules[0], (), {})


def _fsdp_states(part: Module) -> list[Any]:
    """Return all FSDP2 states of the module tree that a part belongs to; empty without FSDP2."""
    return [] if not isinstance(part, FSDPModule) else [*part._get_fsdp_state()._state_ctx.all_states]
