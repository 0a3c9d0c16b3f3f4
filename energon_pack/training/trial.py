"""Test with a training batch whether the model that is trained lets members see each other.

    as is, twice ──► one member's words changed ──► (the first pixels changed) ──► (eval: as is ──► one member alone)

The model is not copied, so the test sees everything that was put into it. Changing one member changes no shape, so
every bit of the other members' outputs must stay, even in bfloat16. Routers are the exception: experts get other
numbers of tokens, so sums are rounded in another way, and a token between two experts may go to the other one.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils.hooks import RemovableHandle

from energon_pack.training.as_it_was import as_it_was
from energon_pack.training.batch import tensors_in
from energon_pack.training.proof import full_precision
from energon_pack.training.trial_inputs import Span, TrialInputs, tokens_of

#: share of a change that counts as rounding: for sums in another order, with experts, in bfloat16 and the like
_SUMS, _EXPERTS, _LOW_PRECISION = 1e-3, 0.05, 0.25
_ROUTED = re.compile("moe|expert|router", re.IGNORECASE)
#: values compared for each token: a whole vocabulary would take gigabytes, and show the same
_NUM_VALUES = 256
#: tokens over which differences are averaged: rounding may send single ones to another expert
_BLOCK = 16


@dataclass(frozen=True)
class Trial:
    """How far outputs moved, as a root mean square; None: not tested."""

    #: outputs of the changed members
    own: float
    #: outputs of the other member that moved most
    others: float
    #: with other pixels: the member that moved most, and the one that moved second most
    by_pixels: tuple[float, float] | None
    #: difference between a member's outputs in the pack and its outputs alone
    alone: float | None
    #: share of `own` that counts as rounding: in the pack, and between the pack and alone
    tolerance: float
    tolerance_alone: float
    seconds: float

    @property
    def is_shown(self) -> bool:
        """Whether the change moved the changed member's own outputs; if not, the test proves nothing."""
        return self.own > 1e-6

    @property
    def shows_pixels(self) -> bool:
        """Whether other pixels moved any output; if not, the test proves nothing about media."""
        return self.by_pixels is not None and self.by_pixels[0] > 1e-6

    @property
    def mixes(self) -> bool:
        """Whether a member's outputs depend on other members, or on being packed."""
        if not self.is_shown:
            return False
        by_pixels, others = self.by_pixels or (self.own, 0.0)
        others = max(self.others / self.own, others / max(by_pixels, 0.2 * self.own))  # few pixels may move little
        return others > self.tolerance or (self.alone or 0.0) > self.tolerance_alone * self.own

    def __str__(self) -> str:
        said = f"one member changed, its own outputs move by {self.own:.2g}, those of others by {self.others:.2g}"
        if self.by_pixels:
            said += "; other pixels move them by {:.2g} and {:.2g}".format(*self.by_pixels)
        return said if self.alone is None else f"{said}; packed and alone differ by {self.alone:.2g}"


def run_trial(part: Module, asked: TrialInputs, with_pixels: bool, with_alone: bool) -> Trial:
    """Run a model with a batch, and again with changes.

    Args:
        part: the module that was called with these inputs; its state is put back.
        with_pixels: run once more with other pixels, or unchanged if the batch has none: all ranks run alike.
        with_alone: run one member alone in eval mode; a model in train() runs the whole batch in eval mode, too.

    Raises:
        ValueError: the output has no values for each token.
    """
    start = time.perf_counter()
    by_pixels = alone = None
    with as_it_was(part) as begin_again, full_precision():

        def run(inputs: Mapping[str, Any]) -> Tensor:
            begin_again()
            return _values(part(**inputs), tokens_of(inputs).shape[:2])

        with _dtypes(part) as dtypes:
            as_is = run(asked.as_is)
        noise = max(_moved(as_is, run(asked.as_is), asked.members))  # some kernels add in any order
        moved = _moved(as_is, run(asked.other_words), asked.members)
        if with_pixels:
            *_, others, most = sorted(_moved(as_is, run(asked.other_pixels or asked.as_is), asked.members))
            by_pixels = (most, others) if asked.other_pixels else None
        if with_alone and asked.alone:
            if part.training:
                for one in part.modules():
                    one.training = False
                as_is = run(asked.as_is)
            member, inputs = asked.alone
            alone = difference(member.of(as_is), run(inputs)[0])
    own = [value for value, member in zip(moved, asked.members, strict=True) if member in asked.changed]
    rest = [value for value, member in zip(moved, asked.members, strict=True) if member not in asked.changed]
    is_low = any(torch.finfo(dtype).eps > 1e-6 for dtype in dtypes)
    is_routed = any(_ROUTED.search(type(one).__name__) for one in part.modules())
    coarse = _LOW_PRECISION if is_low else _EXPERTS if is_routed else _SUMS
    tolerance = max(coarse if is_routed else _SUMS, 3 * noise / max(*own, 1e-9))
    return Trial(max(own), max(rest), by_pixels, alone, tolerance, coarse, round(time.perf_counter() - start, 3))


def first_place(part: Module, asked: TrialInputs, tolerance: float) -> str | None:
    """Return name and class of the first part that mixes members: its inputs keep them apart, its outputs do not.

    This takes two more runs. None: no such part is found; compiled code and outputs without values for each token are
    not seen.
    """
    seen: list[dict[str, tuple[Tensor | None, Tensor | None]]] = []
    with as_it_was(part) as begin_again, full_precision():
        for inputs in (asked.as_is, asked.other_words):
            with _inputs_and_outputs(part, tokens_of(inputs).shape[:2]) as values:
                begin_again()
                part(**inputs)
            seen.append(values)

    def is_kept_apart(some: Tensor | None, other: Tensor | None) -> bool:
        if some is None or other is None:
            return True
        moved = dict(zip(asked.members, _moved(some, other, asked.members), strict=True))
        own = max(moved[member] for member in asked.changed)
        return max(value for member, value in moved.items() if member not in asked.changed) <= tolerance * own

    kinds = {name: type(one).__name__ for name, one in part.named_modules()}
    for name, (given, made) in seen[0].items():
        other_given, other_made = seen[1].get(name, (None, None))
        if is_kept_apart(given, other_given) and not is_kept_apart(made, other_made):
            return f"{name} ({kinds[name]})" if name else kinds[name]
    return None


def difference(some: Tensor, other: Tensor) -> float:
    """Return the largest mean over `_BLOCK` tokens in a row of each token's root mean square difference."""
    each = (some.float() - other.float()).square().mean(-1).sqrt()
    return max(float(block.mean()) for block in each.split(_BLOCK))


def _moved(some: Tensor, other: Tensor, members: Sequence[Span]) -> list[float]:
    return [difference(member.of(some), member.of(other)) for member in members]


def _values(output: Any, shape: torch.Size) -> Tensor:
    """Return the first output [B, S, values] of a model, thinned to about `_NUM_VALUES` values.

    Raises:
        ValueError: it has none.
    """
    parts = output.values() if isinstance(output, Mapping) else (output,)
    for one in tensors_in([*parts]):
        if one.shape[:2] == shape and one.dim() == 3 and one.is_floating_point():
            return one.detach()[..., :: -(-one.shape[-1] // _NUM_VALUES)].clone()
    raise ValueError("its output has no values of each token")


@contextmanager
def _dtypes(part: Module) -> Iterator[set[torch.dtype]]:
    """Collect the dtypes in which a model computes; under autocast they differ from the dtypes of its weights."""
    dtypes: set[torch.dtype] = set()

    def note(_: Module, __: Any, output: Any) -> None:
        dtypes.update(one.dtype for one in tensors_in(output) if one.is_floating_point())

    with _hooked(part, lambda _, one: [one.register_forward_hook(note)]):
        yield dtypes


@contextmanager
def _inputs_and_outputs(part: Module, shape: torch.Size) -> Iterator[dict[str, tuple[Tensor | None, Tensor | None]]]:
    """Collect inputs and outputs of all parts by name, in the order in which the parts finish."""
    given: dict[str, Tensor | None] = {}
    values: dict[str, tuple[Tensor | None, Tensor | None]] = {}

    def some_of(output: Any) -> Tensor | None:
        try:
            return _values(output, shape)
        except ValueError:
            return None

    def hooks(name: str, one: Module) -> list[RemovableHandle]:
        def enter(_: Module, args: Any, keywords: dict[str, Any]) -> None:
            given[name] = some_of([*args, *keywords.values()])

        def leave(_: Module, __: Any, output: Any) -> None:
            values.setdefault(name, (given.get(name), some_of(output)))

        return [one.register_forward_pre_hook(enter, with_kwargs=True), one.register_forward_hook(leave)]

    with _hooked(part, hooks):
        yield values


@contextmanager
def _hooked(part: Module, hooks: Callable[[str, Module], list[RemovableHandle]]) -> Iterator[None]:
    handles: list[RemovableHandle] = []
    try:
        for name, one in part.named_modules():
            handles += hooks(name, one)
        yield
    finally:
        for handle in handles:
            handle.remove()
