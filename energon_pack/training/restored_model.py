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
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn import Module
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

from energon_pack.training.kept_state import restore_state_after_block
from energon_pack.training.model_wrappers import configs_in

#: names of rates of randomness in training
_RATE_NAMES = re.compile("drop|jitter")


@contextmanager
def restore_model_after_block(model: Module) -> Iterator[Callable[[int], None]]:
    """Restore all that a model holds (see `kept_state`), and all random number states, when the block ends.

    Yields:
        A function to call before each run. It resets the random numbers by a seed: runs with one seed have the same
        dropout.
    """
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
        with (
            restore_state_after_block(model, is_sharded(model)),
            torch.random.fork_rng(on_gpu),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")  # checkpointing warns that no input needs gradients
            yield begin_again
    finally:
        random.setstate(host[0])
        np.random.set_state(host[1])
        torch.clear_autocast_cache()  # its copies of weights were made for other graphs


def zero_dropout_and_jitter(model: Any) -> list[tuple[Any, str, float]]:
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


#: functions that drop values
_DROPS = frozenset(
    getattr(home, name)
    for home in (torch.nn.functional, torch)
    for name in dir(home)
    if re.fullmatch(r"(alpha_|feature_|feature_alpha_)?dropout[123]?d?_?", name) and callable(getattr(home, name))
)


class _NothingDropped(TorchFunctionMode):
    """Lets functions that drop values return them all, whoever calls them."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func in _DROPS:
            return args[0] if args else given["input"]
        if func is torch.native_dropout:
            return args[0], torch.ones_like(args[0], dtype=torch.bool)
        return func(*args, **(given | {"dropout_p": 0.0} if given.get("dropout_p") else given))


@contextmanager
def without_dropout(model: Any) -> Iterator[None]:
    """Let nothing be dropped while the block runs: by functions of torch, by rates of dropout and jitter."""
    rates = zero_dropout_and_jitter(model)
    try:
        with _NothingDropped():
            yield
    finally:
        for part, name, value in rates:
            setattr(part, name, value)


@contextmanager
def without_tf32() -> Iterator[None]:
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
    if has_flat_parameters(model) or any(isinstance(part, FSDPModule) for part in model.modules()):
        return True
    return any(isinstance(one, DTensor) or hasattr(one, "ds_id") for one in model.parameters())


def has_flat_parameters(model: Module) -> bool:
    """Say whether parts of a model are sharded by FSDP1."""
    return any(isinstance(part, FullyShardedDataParallel) for part in model.modules())


@contextmanager
def rerun_in_fsdp_forward(part: Module) -> Iterator[Callable[..., Any]]:
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
