"""Name the part of a model in which members begin to see each other."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils.hooks import RemovableHandle

from energon_pack.training.finding import difference, variation
from energon_pack.training.trial_inputs import Run, Span
from energon_pack.training.watch import hooked, tokens_of, values_of

_Values = list[Tensor] | None


def first_place(part: Module, call: Callable[..., Any], runs: Sequence[Run], tolerance: float) -> str | None:
    """Return name and class of the first part with equal inputs and other outputs for the same members in two runs.

    None: no such part is found; compiled code, a backward, and outputs without values for each token are not seen.

    Args:
        call: runs the part.
        runs: two, in which the same members stand, maybe in other places.
        tolerance: share of the outputs' variation that counts as rounding.
    """
    (first, second) = (_inputs_and_outputs(part, call, *run) for run in runs)

    def are_same(these: _Values, those: _Values) -> bool:
        if these is None or those is None:
            return True
        pairs = zip(these, those, strict=True)
        return all(difference(a, b, 1) <= tolerance * max(variation(a), variation(b)) for a, b in pairs)

    kinds = {name: type(one).__name__ for name, one in part.named_modules()}
    for name, (entered, left) in first.items():
        other_entered, other_left = second.get(name, (None, None))
        if are_same(entered, other_entered) and not are_same(left, other_left):
            return f"{name} ({kinds[name]})" if name else kinds[name]
    return None


def _inputs_and_outputs(
    part: Module, call: Callable[..., Any], inputs: Mapping[str, Any], members: Sequence[Span]
) -> dict[str, tuple[_Values, _Values]]:
    """Return the members' inputs and outputs of all parts by name, in the order in which the parts finish."""
    shape = tokens_of(inputs).shape[:2]
    entered: dict[str, _Values] = {}
    found: dict[str, tuple[_Values, _Values]] = {}

    def of_members(output: Any) -> _Values:
        values = values_of(output, shape)
        return None if values is None else [member.of(values).detach().clone() for member in members]

    def hooks(name: str, one: Module) -> list[RemovableHandle]:
        def enter(_: Module, args: Any, keywords: dict[str, Any]) -> None:
            entered[name] = of_members([*args, *keywords.values()])

        def leave(_: Module, __: Any, output: Any) -> None:
            found.setdefault(name, (entered.get(name), of_members(output)))

        return [one.register_forward_pre_hook(enter, with_kwargs=True), one.register_forward_hook(leave)]

    with hooked(part, hooks), torch.no_grad():
        call(**inputs)
    return found
