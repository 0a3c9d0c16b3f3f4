"""Run a part of a model whose parameters are sharded by FSDP2, while a forward of it is pending."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn import Module, Parameter


def is_sharded(model: Module) -> bool:
    """Say whether parameters are sharded: by FSDP, tensor parallelism, DeepSpeed's ZeRO 3."""
    if not dist.is_available() or not dist.is_initialized():
        return False
    if any(isinstance(part, (FSDPModule, FullyShardedDataParallel)) for part in model.modules()):
        return True
    return any(isinstance(one, DTensor) or hasattr(one, "ds_id") for one in model.parameters())


@contextmanager
def ended(part: Module) -> Iterator[Callable[..., Any]]:
    """End the pending forward of FSDP2, which does not take another one with a backward within, and begin it again.

    Yields:
        A function that runs the part, with its parameters gathered.
    """
    every = {id(state): state for one in part.modules() for state in _states(one)}
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


def parameters_of(part: Module) -> set[Parameter]:
    """Return the parameters of a part, sharded and gathered ones."""
    groups = [group for one in part.modules() for state in _states(one) for group in state._fsdp_param_groups]
    sharded = [one for group in groups for one in group.fsdp_params]
    gathered = [one._unsharded_param for one in sharded if hasattr(one, "_unsharded_param")]
    return {*part.parameters(), *(one.sharded_param for one in sharded), *gathered}


def _states(part: Module) -> list[Any]:
    """Return the states of the tree of FSDP2 to which a part belongs."""
    return [] if not isinstance(part, FSDPModule) else [*part._get_fsdp_state()._state_ctx.all_states]
