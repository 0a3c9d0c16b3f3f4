"""Run a part of a model, record outputs, loss and embeddings, and repeat the experts that its routers chose.

`Routing` notes and repeats choices that routers make by `topk`. A sample alone repeats a choice only where its own
scores of both are alike. Another choice is its own: it shows in its outputs that the router saw the row.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint as checkpoints
from torch.utils.hooks import RemovableHandle

from energon_pack.training.batch import tensors_in
from energon_pack.training.forward_inputs import ids_or_embeddings

#: values of a sketch: a whole vocabulary would take gigabytes
_SKETCH_SIZE = 256
#: tokens that are sketched together, since each takes a float32 for each id of the vocabulary meanwhile
_SKETCHED_TOKENS = 64
#: how far embeddings of float32 are moved by a rounding; sums in another order differ by about 1e-6
_ROUNDING = 1e-5
#: some classes give words that can't come next a logit as low as that
_IMPOSSIBLE_LOGIT = 1e4


@dataclass
class RunValues:
    """Outputs, loss and embeddings of one run of a model."""

    #: [B, S, values]: a sketch of each token's outputs, and one of the values that enter the head
    sketches: list[Tensor] = field(default_factory=list)
    #: the model's own loss; None: it computes none
    loss: Tensor | None = None
    #: [B, S, width]: the embeddings, from which gradients are followed; None: not followed
    embeddings: Tensor | None = None
    #: the types in which it computes; under autocast they differ from the types of its weights
    dtypes: set[torch.dtype] = field(default_factory=set)


def run_and_record(
    part: Module,
    inputs: Mapping[str, Any],
    call: Callable[..., Any],
    record_embeddings: bool = False,
    keep_sketch_graph: bool = False,
) -> RunValues:
    """Run `part`, a part of a model, by `call(**inputs)`; record its loss, and its outputs as sketches (`sketch_of`).

    Args:
        record_embeddings: record the embeddings, too, made to require gradients.
        keep_sketch_graph: keep the graph of the sketches, so that a loss of them has gradients.
    """
    seen, shape = RunValues(), ids_or_embeddings(inputs).shape[:2]
    head = getattr(part, "get_output_embeddings", lambda: None)()
    last: dict[str, Tensor] = {}

    def note(module: Module, args: Any, output: Any) -> Any:
        seen.dtypes.update(one.dtype for one in tensors_in(output) if one.is_floating_point())
        if module is head and (entered := token_values_of(args, shape)) is not None:
            last["entered"] = entered
        if (values := token_values_of(output, shape)) is None:
            return None
        last["outputs"] = values  # of the last part that has some: a fused loss leaves logits out
        if not record_embeddings or seen.embeddings is not None or not isinstance(output, Tensor):
            return None
        seen.embeddings = output if output.requires_grad else output.detach().requires_grad_()
        return seen.embeddings.clone()  # some models write images into it

    with hooked(part, lambda _, one: [one.register_forward_hook(note)]):
        output = call(**inputs)
    loss = output.get("loss") if isinstance(output, Mapping) else None
    seen.loss = loss if isinstance(loss, Tensor) else None
    if "outputs" not in last or (record_embeddings and seen.embeddings is None):
        raise ValueError("its output has no values of each token")
    with torch.set_grad_enabled(keep_sketch_graph and torch.is_grad_enabled()):
        seen.sketches = [sketch_of(last[name]) for name in ("outputs", "entered") if name in last]
    return seen


def sketch_of(values: Tensor) -> Tensor:
    """Sum outputs [B, S, V] into a few values, each with a random sign, so that every output counts.

    Logits of impossible words count as 0. More than `_SKETCH_SIZE` outputs become as many values of their size.
    """
    return torch.cat([_sketch(part.float()) for part in values.split(_SKETCHED_TOKENS, dim=1)], dim=1)


def _sketch(values: Tensor) -> Tensor:
    values, width = values.masked_fill(values.abs() >= _IMPOSSIBLE_LOGIT, 0.0), values.shape[-1]
    if width <= _SKETCH_SIZE:
        return values
    signed = torch.nn.functional.pad(values * _signs(width).to(values.device), (0, -width % _SKETCH_SIZE))
    summed: Tensor = signed.unflatten(-1, (-1, _SKETCH_SIZE)).sum(-2)
    return summed.mul((_SKETCH_SIZE / width) ** 0.5)


@cache
def _signs(width: int) -> Tensor:
    """Return `width` random signs, the same in every run."""
    return torch.randint(2, (width,), generator=torch.Generator().manual_seed(0)) * 2.0 - 1.0


def token_values_of(output: Any, shape: torch.Size) -> Tensor | None:
    """Return a part's first output [B, S, values]; None: it has none."""
    parts = output.values() if isinstance(output, Mapping) else (output,)
    for one in tensors_in([*parts]):
        if one.shape[:2] == shape and one.dim() == 3 and one.is_floating_point():
            return one
    return None


@contextmanager
def hooked(part: Module, hooks: Callable[[str, Module], Sequence[RemovableHandle]]) -> Iterator[None]:
    """Put hooks, made by a function of name and part, on all parts of a model while the block runs."""
    handles: list[RemovableHandle] = []
    try:
        for name, one in part.named_modules():
            handles += hooks(name, one)
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def perturbed_embeddings(part: Any) -> Iterator[None]:
    """Move embeddings by about a rounding while the block runs, to see what a model makes of one."""

    def move(_: Module, __: Any, out: Tensor) -> Tensor:
        size = max(_ROUNDING, torch.finfo(out.dtype).eps)
        return out * (1 + size * torch.arange(out.shape[-1], device=out.device).cos()).to(out.dtype)

    handle = part.get_input_embeddings().register_forward_hook(move)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def without_reentrant() -> Iterator[None]:
    """Run torch's checkpoints with `use_reentrant`, which write `.grad` of all weights, as those without it."""
    own = checkpoints.CheckpointFunction
    checkpoints.CheckpointFunction = _Checkpoint  # type: ignore[misc, assignment]
    try:
        yield
    finally:
        checkpoints.CheckpointFunction = own  # type: ignore[misc]


class _Checkpoint:
    """In place of torch's `CheckpointFunction`. Where `checkpoint` is ms-swift's, which makes each one reentrant again,
    the function runs without.
    """

    _is_asked = False

    @classmethod
    def apply(cls, function: Callable[..., Any], keeps_random_state: bool, *args: Any) -> Any:
        if cls._is_asked:
            return function(*args)

        def begin(*given: Any) -> Any:
            cls._is_asked = False
            return function(*given)

        cls._is_asked = True
        try:
            return checkpoints.checkpoint(begin, *args, use_reentrant=False, preserve_rng_state=keeps_random_state)
        finally:
            cls._is_asked = False


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
