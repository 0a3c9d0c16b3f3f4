"""How the media inputs of several members become one input each: shown by the processor itself, before training.

A processor makes the media of some members one by one, and those of them all in one call. For every input there has to
be a rule by which the former, put together, are the latter.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad as pad_tensor

Media = Mapping[str, Tensor]
_Given = TypeVar("_Given")

#: what processors fill up with
_FILLS = (0.0, -1.0, 1.0)


@dataclass(frozen=True)
class Join:
    """How the tensors of one name are joined."""

    #: along this dimension
    dim: int = 0
    #: what fills up those that are smaller than the largest in another dimension; None: all are as large
    fill: float | None = None
    #: values from 0 on count the rows of this input, over so many of its dimensions, and go on from member to member
    counts: tuple[str, int] | None = None

    def __call__(self, values: Sequence[Tensor], counted: Sequence[Tensor] = ()) -> Tensor:
        """The tensors as one.

        Args:
            counted: those that `counts` names, of the same members.

        Raises:
            RuntimeError: their sizes can't be joined.
        """
        if len(values) == 1:
            return values[0]
        if self.fill is not None:
            sizes = [max(value.shape[i] for value in values) for i in range(values[0].dim())]
            values = [self._grown(value, sizes) for value in values]
        if self.counts is not None:
            firsts = accumulate((prod(value.shape[: self.counts[1]]) for value in counted), initial=0)
            values = [torch.where(v >= 0, v + first, v) for v, first in zip(values, firsts, strict=False)]
        return torch.cat(list(values), self.dim)

    def _grown(self, value: Tensor, sizes: Sequence[int]) -> Tensor:
        pairs = zip(sizes, value.shape, strict=True)
        missing = [0 if i == self.dim else size - have for i, (size, have) in enumerate(pairs)]
        if not any(missing):
            return value
        around = [n for amount in reversed(missing) for n in (0, amount)]
        grown: Tensor = pad_tensor(value, around, value=self.fill)
        return grown


#: media below each other, as most processors have them
_BELOW = Join()


def join(parts: Iterable[Media], joins: Mapping[str, Join] | None = None) -> dict[str, Tensor]:
    """The media of several members as one model input each, in their order.

    Args:
        joins: rules by name; what is not named follows each other in the first dimension.

    Raises:
        ValueError: sizes that can't be joined.
    """
    parts = [part for part in parts if part]
    joined = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        try:
            joined[name] = _joined(name, (joins or {}).get(name, _BELOW), parts)
        except (RuntimeError, ValueError, IndexError) as error:
            raise ValueError(f"{name} of these members can't be joined: {error}") from None
    return joined


def _joined(name: str, rule: Join, parts: Sequence[Media]) -> Tensor:
    having = [part for part in parts if name in part]
    counted = [part[rule.counts[0]] for part in having] if rule.counts else []
    return rule([part[name] for part in having], counted)


@dataclass(frozen=True)
class Proven:
    """What was shown of a processor."""

    #: rules by the name of the input
    joins: Mapping[str, Join]
    #: whether one call for all members gives what their own calls do
    at_once: bool
    #: why media of several sizes, or clips of several lengths, can't be joined; empty: they can
    limit: str = ""


class JoinError(ValueError):
    """No rule joins what a processor makes of several members."""


def prove(
    call: Callable[[Sequence[_Given], bool], dict[str, Tensor]], given: Sequence[_Given], twins: Sequence[_Given]
) -> Proven:
    """Find how the media of members are joined.

    Args:
        call: the processor, for the media of some members; as one text, or as a text each.
        given: media of members, of different sizes.
        twins: others, of one size: for processors that make nothing together of several sizes.

    Raises:
        JoinError: an input that no rule joins.
        Exception: whatever the processor raises for a member alone.
    """
    given, own = _made(call, given)
    first: Exception | None = None
    for some, as_rows in ((given, False), (given, True), (twins, False), (twins, True)):
        if as_rows and isinstance(first, JoinError):
            continue  # texts in rows tell nothing of one text that comes out otherwise
        try:
            together = call(some, as_rows)
            parts = own if some is given else [call([one], False) for one in twins]
        except Exception as error:  # any class of any processor may be behind it
            first = first or error
            continue
        names = {name for part in (*own, *parts) for name in part}
        if strange := sorted(names ^ together.keys()):
            raise JoinError(f"{', '.join(strange)}: in the media of one member alone, or of several alone")
        joins = {name: rule for name in sorted(names) if (rule := _find(name, parts, together[name]))}
        if lost := sorted(names - joins.keys()):
            first = first or JoinError(f"no rule joins {', '.join(lost)} of several members")
            continue
        return Proven(joins, some is given and not as_rows, "" if some is given else _limit(own, joins))
    raise first if isinstance(first, JoinError) else JoinError(f"{type(first).__name__}: {first}")


def _made(
    call: Callable[[Sequence[_Given], bool], dict[str, Tensor]], given: Sequence[_Given]
) -> tuple[list[_Given], list[dict[str, Tensor]]]:
    """Those that the processor takes alone, and what it makes of each; two at least."""
    taken: list[_Given] = []
    own: list[dict[str, Tensor]] = []
    errors: list[Exception] = []
    for one in given:
        try:
            own.append(call([one], False))
            taken.append(one)
        except Exception as error:  # any class of any processor may be behind it
            errors.append(error)
    if len(own) < 2:
        raise errors[0]
    return taken, own


def _limit(parts: Sequence[Media], joins: Mapping[str, Join]) -> str:
    try:
        join(parts, joins)
    except ValueError as error:
        return str(error)
    return ""


def _find(name: str, parts: Sequence[Media], together: Tensor) -> Join | None:
    having = [part for part in parts if name in part]
    if any(part[name].dim() != together.dim() or part[name].dtype != together.dtype for part in having):
        return None
    for rule in _rules(name, having, together.dim()):
        try:
            joined = _joined(name, rule, having)
        except RuntimeError:
            continue
        if joined.shape == together.shape and _are_equal(joined, together):
            return rule
    return None


def _rules(name: str, having: Sequence[Media], num_dims: int) -> Iterator[Join]:
    """From the plainest on."""
    along = [Join(dim) for dim in range(num_dims)]
    yield from along
    yield from (replace(rule, fill=fill) for fill in _FILLS for rule in along)
    if not having[0][name].is_floating_point():
        others = [other for other in having[0] if other != name and all(other in part for part in having)]
        yield from (Join(counts=(other, dims)) for other in others for dims in (1, 2))


def _are_equal(some: Tensor, others: Tensor) -> bool:
    if some.is_floating_point():
        return torch.allclose(some, others, rtol=0, atol=1e-5, equal_nan=True)
    return torch.equal(some, others)
