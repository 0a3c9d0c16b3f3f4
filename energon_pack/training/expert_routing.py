"""Repeat the experts that routers chose: rounding would send a token between two of them to the other one.

A sample alone repeats a choice only where its own scores of both are alike. Another choice is its own: it shows in its
outputs that the router saw the row. Routers choose by `topk`.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.overrides import TorchFunctionMode

from energon_pack.training.recording import hooked

_EXPERT_CLASS_NAMES = re.compile("moe|expert|router", re.IGNORECASE)
#: scores are alike if they differ by no more than this share of the spread of all: in float32, and in shorter types
_TIE, _SHORT_TIE = 1e-2, 0.2


@dataclass(frozen=True)
class _ExpertChoice:
    #: int64 [..., chosen]
    indices: Tensor
    num_choices: int
    is_repeated: bool


class Routing(TorchFunctionMode):
    """Records which experts routers choose in one run, or repeats those of an earlier run; see `use_routing`."""

    def __init__(
        self, earlier: "Routing | None" = None, rows: Tensor | None = None, num_rows: int = 0, is_low: bool = False
    ):
        """Record choices, or repeat those of `earlier`.

        Args:
            rows: repeat ties alone, at these of the `num_rows` tokens of the earlier run; None: repeat all choices.
            is_low: scores are rounded to a short type.
        """
        super().__init__()
        self._tie = _SHORT_TIE if is_low else _TIE
        #: set it behind the forward: checkpoints run parts once more in the backward, the last ones first
        self.is_over = False
        self._earlier, self._rows, self._num_rows = earlier, rows, num_rows
        #: choices since a part began, for each time that it did, by its name
        self._choices: dict[str, list[list[_ExpertChoice]]] = {}
        self._left: dict[str, int] = {}
        self._number, self._own, self._repeated = 0, list[_ExpertChoice](), list[_ExpertChoice]()

    @property
    def has_choices(self) -> bool:
        """Whether any expert was chosen by `topk`."""
        return any(choices for times in self._choices.values() for choices in times)

    def begin(self, name: str) -> None:
        """Record that the forward of the part `name` begins."""
        times = self._choices.setdefault(name, [])
        self._number = 0
        if self.is_over:
            self._left[name] = max(self._left.get(name, len(times)) - 1, 0)
            self._own = times[self._left[name]] if times else []
            return
        before = self._earlier._choices.get(name, []) if self._earlier else []
        self._own, self._repeated = [], before[len(times)] if len(times) < len(before) else []
        times.append(self._own)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func not in (torch.topk, Tensor.topk) or not args or result.indices.shape[:-1] != args[0].shape[:-1]:
            return result
        if not self.is_over:
            self._own.append(self._recorded_choice(args[0].detach(), result.indices))
        choice = self._own[self._number] if self._number < len(self._own) else None
        self._number += 1
        if choice is None or not choice.is_repeated:
            return result
        return torch.return_types.topk((args[0].gather(-1, choice.indices), choice.indices))

    def _recorded_choice(self, scores: Tensor, indices: Tensor) -> _ExpertChoice:
        again = self._earlier_choice(indices, scores.shape[-1])
        if again is not None and self._rows is not None:
            again = _other_choice_at_ties(scores, indices, again, self._tie)
        return _ExpertChoice(indices if again is None else again, scores.shape[-1], again is not None)

    def _earlier_choice(self, indices: Tensor, num_choices: int) -> Tensor | None:
        """Return the earlier choice that belongs here; None: none fits."""
        number = len(self._own)
        if number >= len(self._repeated) or self._repeated[number].num_choices != num_choices or indices.dim() < 2:
            return None
        chosen = self._repeated[number].indices
        if self._rows is not None:
            rows = chosen.reshape(-1, chosen.shape[-1])
            if len(rows) != self._num_rows or indices.numel() != len(self._rows) * indices.shape[-1]:
                return None
            chosen = rows[self._rows].view(indices.shape)
        return chosen if chosen.shape == indices.shape else None


def _other_choice_at_ties(scores: Tensor, own: Tensor, other: Tensor, tie: float) -> Tensor:
    """Return a sample's `own` choices, and the `other` ones where its scores [..., choices] of both are alike."""
    values = scores.float()
    gap = values.gather(-1, own).amin(-1) - values.gather(-1, other).amin(-1)
    possible = values[values.isfinite()]
    return torch.where((gap <= tie * possible.std().clamp_min(1e-9))[..., None], other, own)


@contextmanager
def use_routing(part: Module, routing: Routing | None) -> Iterator[None]:
    """Record or repeat a part's choices of experts while the block runs; None: do neither."""
    if routing is None:
        yield
        return
    with hooked(part, lambda name, one: [one.register_forward_pre_hook(lambda *_: routing.begin(name))]), routing:
        yield


def has_experts(part: Module) -> bool:
    """Say whether a part has experts, by the class names of its modules."""
    return any(_EXPERT_CLASS_NAMES.search(type(one).__name__) for one in part.modules())
