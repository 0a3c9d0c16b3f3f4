"""Find the model of transformers inside trainers' wrappers (DDP, FSDP, torch.compile, PEFT), and a config's parts."""

from collections.abc import Iterator
from typing import Any

from torch.nn import Module

#: attributes in which wrappers hold the model: torch.compile; FSDP1; DDP and DeepSpeed
_WRAPPED_ATTRIBUTES = ("_orig_mod", "_fsdp_wrapped_module", "module")


def unwrapped(model: Any) -> Any:
    """Return the model inside its wrappers; anything else is returned unchanged."""
    while not is_transformers_model(model):
        if hasattr(type(model), "get_base_model"):  # PEFT
            inner = model.get_base_model()
        else:
            parts = model._modules if isinstance(model, Module) else {}
            inner = next((parts[name] for name in _WRAPPED_ATTRIBUTES if parts.get(name) is not None), None)
        if inner is None:
            return model
        model = inner
    return model


def is_transformers_model(model: Any) -> bool:
    """Say whether this is a model of transformers, not a wrapper of one."""
    return hasattr(type(model), "_from_config")


def class_of(model: Any) -> Any:
    """Return a model's class; after `fully_shard`, which replaces it, the class before that."""
    return next(kind for kind in type(model).__mro__ if "FSDPModule" not in [base.__name__ for base in kind.__mro__])


def configs_in(config: Any) -> Iterator[Any]:
    """Yield a config and all configs inside it."""
    yield config
    for value in list(vars(config).values()):
        if hasattr(value, "model_type") and hasattr(value, "get_text_config"):
            yield from configs_in(value)
