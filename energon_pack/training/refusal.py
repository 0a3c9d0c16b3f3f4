"""Say that a model mixes the members of a batch, and name the part in which they begin to see each other."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils.hooks import RemovableHandle

from energon_pack.training.finding import difference, variation
from energon_pack.training.trial import Trial
from energon_pack.training.trial_inputs import Run, Span
from energon_pack.training.watch import hooked, tokens_of, values_of

#: where outputs are those of the members alone
_LOSS = (
    "Outputs agree, the loss does not: output_router_logits adds one over the routers of the whole row, and a"
    " loss_function may predict more than the next token (model.config.output_router_logits=False). "
)
_BACKWARD = "Outputs and loss agree, gradients do not: a kernel's backward has no mask, or a hook mixes gradients. "
_Values = list[Tensor] | None


def refusal(name: str, batch: str, trial: Trial, place: str | None) -> str:
    """Say what mixes, and where it first shows."""
    if trial.is_random:
        return (
            f"{name} draws random numbers in train() beside dropout, so that it can't be compared with its members"
            " alone; NEFTune's noise goes by the length of the row: leave it out (neftune_noise_alpha=None). "
        )
    shows = f"It first shows in {place}. " if place else ""
    is_quiet = trial.mixes and not trial.moved_others and trial.alone.has_outputs
    beside = "" if not is_quiet else _BACKWARD if trial.alone.has_loss else _LOSS
    return f"{name} mixes the members of {batch}{'' if trial.mixes else ' on another rank'}: {trial}. {shows}{beside}"


def first_place(part: Module, call: Callable[..., Any], runs: Sequence[Run], tolerance: float) -> str | None:
    """Return name and class of the first part with equal inputs and other outputs for the same members in two runs.

    None: no such part is found; compiled code, a backward, and outputs without values for each token are not seen.
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
