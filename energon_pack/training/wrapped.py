"""The model of transformers within what trainers wrap it in: DDP, FSDP, torch.compile, PEFT."""

from typing import Any

from torch.nn import Module

#: what wrappers hold the model as: torch.compile; DDP, FSDP1 and DeepSpeed
_NAMES = ("_orig_mod", "_fsdp_wrapped_module", "module")


def unwrapped(model: Any) -> Any:
    """The model within its wrappers; what is none of those stays as it is."""
    while not is_whole(model):
        if hasattr(type(model), "get_base_model"):  # PEFT
            inner = model.get_base_model()
        else:
            parts = model._modules if isinstance(model, Module) else {}
            inner = next((parts[name] for name in _NAMES if parts.get(name) is not None), None)
        if inner is None:
            return model
        model = inner
    return model


def is_whole(model: Any) -> bool:
    """Whether it is a model of transformers, and no wrapper of one."""
    return hasattr(type(model), "_from_config")


def class_of(model: Any) -> Any:
    """The class that a model was made of: `fully_shard` puts one of its own in that place."""
    return next(kind for kind in type(model).__mro__ if "FSDPModule" not in [base.__name__ for base in kind.__mro__])
