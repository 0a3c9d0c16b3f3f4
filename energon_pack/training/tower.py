"""Make in a loader's worker what a vision tower would work out from the sizes of its media, on the host.

A tower works out windows, boundaries and positions from grids, and waits for the GPU each time that it reads one.
transformers makes the same values beforehand for its exports, and its classes take them as keyword arguments.
"""

import copy
import hashlib
import inspect
import json
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch.nn import Module

from energon_pack.training.outline import PREFIX
from energon_pack.training.wrapped import class_of, is_whole

#: input of a tower from which it works out the rest
_GRID = "grid_thw"
#: a batch's grid of one kind of media
_OF_A_KIND = re.compile(rf"[a-z]+_{_GRID}")


class Tower:
    """Makes the values for one tower.

    Args:
        make: its class.
        config: its config, of full size.
    """

    def __init__(self, make: Any, config: Any):
        self._given = make, config
        content = [make.__module__, make.__qualname__, config.to_dict()]
        #: tells a batch's values from those for another tower
        self.mark = hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()

    def __reduce__(self) -> tuple[type["Tower"], tuple[Any, Any]]:
        """Pickle only the class and the config."""
        return Tower, self._given

    def __call__(self, media: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a batch brings for the tower.

        Args:
            media: a batch's, on the host, with `image_grid_thw` or `video_grid_thw` [media, 3].

        Returns:
            `tower`: the mark; for each kind `tower_image_cu_seqlens`, `tower_image_position_ids`,
            `tower_image_max_seqlen` …: whatever the tower has, behind the name under which a model takes it.
        """
        from transformers.exporters.utils import precompute_export_inputs

        values: dict[str, Any] = {}
        for key in filter(_OF_A_KIND.fullmatch, media):
            made = {_GRID: media[key]}
            precompute_export_inputs(self._module, made)
            kind = key.removesuffix(_GRID)  # with its underscore
            values |= {f"{PREFIX}{kind}{name}": value for name, value in made.items() if name != _GRID}
        return {"tower": self.mark} | {name: value for name, value in values.items() if value is not None}

    @cached_property
    def _module(self) -> Any:
        make, config = self._given
        with torch.device("meta"):
            module = make._from_config(copy.deepcopy(config))
        module.config._attn_implementation = "flash_attention_2"  # only flash attention asks for the longest
        return module


def tower_in(model: Module) -> Tower | None:
    """Return the tower of a model that reads grids; None: it has none, or this transformers makes no values for it."""
    try:
        import transformers.exporters.utils  # noqa: F401
    except ImportError:
        return None
    part = module_in(model)
    return None if part is None else Tower(class_of(part), part.config)


def module_in(model: Module) -> Any:
    """Return the part of a model that reads grids; None: it has none."""
    parts = (part for part in model.modules() if is_whole(part) and part is not model)
    return next((part for part in parts if _GRID in inspect.signature(part.forward).parameters), None)
