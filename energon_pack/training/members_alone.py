"""Compare members of a batch with their runs alone, in the model that is trained and as it is trained."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from energon_pack.training.batch_members import MemberPlaces
from energon_pack.training.comparison import RunOptions, compare
from energon_pack.training.finding import BatchDifference, max_difference, max_or_nan, token_variation
from energon_pack.training.kept_state import restore_state_after_block
from energon_pack.training.media_shares import media_inputs_in
from energon_pack.training.model_trial import PendingForward, RunInputs
from energon_pack.training.recording import Routing, has_experts, perturbed_embeddings, run_and_record, use_routing
from energon_pack.training.restored_model import is_sharded, without_dropout, without_tf32
from energon_pack.training.trial_inputs import Probe, flag_inputs, without_loss

#: where gradients of weights exist already, those of so small a part of them are compared
_SHARE_BESIDE_GRADIENTS, _MIN_BESIDE_GRADIENTS = 8, 2**26


@dataclass(frozen=True)
class AloneComparison:
    """The result of comparing members of a batch with their runs alone."""

    finding: BatchDifference
    #: whether random numbers other than dropout's change outputs
    is_random: bool
    #: inputs of the batch and of one of its members alone, each with this member's place in it
    runs: tuple[RunInputs, RunInputs]


def compare_with_members_alone(pending: PendingForward, probe: Probe, options: RunOptions) -> AloneComparison:
    """Compare the outputs, loss and gradients of members with their runs alone, without dropout."""
    part, switches = pending.part, flag_inputs(pending.inputs)
    plain, compared = probe.inputs_alone, [one for one in probe.placed if one.is_compared]
    probe = replace(probe, inputs_alone=lambda sample: switches | plain(sample))
    shortest = min(compared, key=lambda one: len(one.places))
    last = max(compared, key=lambda one: int(one.places[-1]))  # sees all others, if anyone does
    with without_dropout(part), without_tf32(), restore_state_after_block(part, is_sharded(part)) as put_back:

        def before_run(seed: int) -> None:
            put_back()  # spectral norms and scales of 8 bits go on with each forward
            begin(seed)

        begin, pending = pending.before_run, replace(pending, before_run=before_run)
        options = replace(options, before_run=partial(before_run, 0))
        is_random = part.training and _outputs_are_random(pending, without_loss(probe.inputs_alone(shortest.sample)))
        finding = replace(compare(options, probe), in_training=part.training)
        low = options.tolerances[1]
        if pending.on_any_rank(finding.mixes and all(share <= low for share in finding.differences)):
            steps = min(3 * _rounding_effect(pending, probe), low)
            finding = replace(finding, tolerance=max(finding.tolerance, steps))
    here = torch.arange(len(last.places))
    packed, alone = MemberPlaces(last.row, last.places, last.places), MemberPlaces(0, here, here)
    runs = (without_loss(probe.inputs), [packed]), (without_loss(probe.inputs_alone(last.sample)), [alone])
    return AloneComparison(finding, is_random, runs)


def choose_weights_to_compare(part: Module, random: Random) -> list[Tensor]:
    """Return the weights whose gradients are compared: all; some, if they have gradients; none, if they are sharded."""
    every: list[Tensor] = [one for one in part.parameters() if one.requires_grad]
    if is_sharded(part):
        return []
    if all(one.grad is None for one in every):
        return every
    random.shuffle(every)
    room = max(sum(one.nbytes for one in every) // _SHARE_BESIDE_GRADIENTS, _MIN_BESIDE_GRADIENTS)
    kept: list[Tensor] = []
    for one in every:
        if (room := room - one.nbytes) >= 0:
            kept.append(one)
    return kept or every[:1]


def _outputs_are_random(pending: PendingForward, alone: Mapping[str, Any]) -> bool:
    """Say whether other seeds change the outputs of a sample alone more than a second run with the same seed does."""

    def run(seed: int) -> Tensor:
        pending.before_run(seed)
        with torch.no_grad():
            return run_and_record(pending.part, alone, pending.call).sketches[0][0]

    first = run(0)
    same, *other_seeds = (max_difference(first, run(seed), 1) for seed in (0, 1, 2, 3))
    return max(other_seeds) > 3 * same + 1e-6 * token_variation(first)


def _rounding_effect(pending: PendingForward, probe: Probe) -> float:
    """Return by what share outputs of a batch move where its embeddings are off by a rounding, with the same experts.

    Where a model rounds to codes of 8 or 4 bits, a sum in another order may end at the next code.
    """
    part: Any = pending.part
    seen, routing = list[Tensor](), Routing() if has_experts(part) else None
    for choices, way in ((routing, nullcontext()), (routing and Routing(routing), perturbed_embeddings(part))):
        pending.before_run(0)
        with torch.no_grad(), use_routing(part, choices), way:
            seen.append(run_and_record(part, without_loss(probe.inputs), pending.call).sketches[0])
    pairs = [[one[place.row, place.places] for one in seen] for place in probe.placed if place.is_compared]
    return max_or_nan(max_difference(first, second, 1) / max(token_variation(first), 1e-30) for first, second in pairs)


@contextmanager
def restored_inputs(inputs: Mapping[str, Any]) -> Iterator[None]:
    """Put back what a model writes into its inputs while the block runs: no cache would know copies of them."""
    media = media_inputs_in(inputs)
    copies = {name: v.clone() for name, v in inputs.items() if isinstance(v, Tensor) and name not in media}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, copy in copies.items():
                if not torch.equal(inputs[name], copy):
                    inputs[name].copy_(copy)


def removes_input_ids(pending: PendingForward) -> bool:
    """Say whether a hook removes `input_ids`, which a model needs to find images: ms-swift's embeds them."""
    kept: list[bool] = []
    if not pending.on_any_rank(len(pending.part._forward_pre_hooks) > 1):  # the guard's own
        return False
    handle = pending.part.register_forward_pre_hook(
        lambda _, __, keywords: kept.append("input_ids" in keywords), with_kwargs=True
    )
    pending.before_run(0)
    try:
        with torch.no_grad():
            pending.call(**without_loss(pending.inputs))
    finally:
        handle.remove()
    return not all(kept)
