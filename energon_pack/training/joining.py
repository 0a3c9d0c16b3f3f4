"""Find out before training how to join the media inputs of several members into one.

The processor is called for some members one by one, and for all of them at once. Each input needs a rule that joins the
results of the single calls into the result of the common call.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad as pad_tensor

Inputs = Mapping[str, Tensor]
_Media = TypeVar("_Media")

#: values that processors pad media inputs with
_PAD_VALUES = (0.0, -1.0, 1.0)
#: the last frames of a sound, which depend on the padding behind them
_EDGE_FRAMES = 4


@dataclass(frozen=True)
class JoinRule:
    """The rule that joins members' tensors of one input into one tensor."""

    #: the dimension along which they are concatenated
    dim: int = 0
    #: pads tensors to the largest size in the other dimensions; None: their sizes are equal
    pad_value: float | None = None
    #: (input, number of dimensions): values ≥ 0 are indices into that input's first dimensions, flattened; the indices
    #: of a member continue after those of the previous member
    indexed_input: tuple[str, int] | None = None
    #: why only members with the same inputs of this kind, in one size, can be joined; empty: all can
    only_alike_reason: str = ""

    def __call__(self, values: Sequence[Tensor], counted: Sequence[Tensor] = ()) -> Tensor:
        """Join the members' tensors; `counted`: their tensors of the other input, which `indexed_input` names."""
        if len(values) == 1:
            return values[0]
        if self.pad_value is not None:
            sizes = [max(value.shape[i] for value in values) for i in range(values[0].dim())]
            values = [self._padded_to(value, sizes) for value in values]
        if self.indexed_input is not None:
            firsts = accumulate((prod(value.shape[: self.indexed_input[1]]) for value in counted), initial=0)
            values = [torch.where(v >= 0, v + first, v) for v, first in zip(values, firsts, strict=False)]
        return torch.cat(list(values), self.dim)

    def _padded_to(self, value: Tensor, sizes: Sequence[int]) -> Tensor:
        pairs = zip(sizes, value.shape, strict=True)
        missing = [0 if i == self.dim else size - have for i, (size, have) in enumerate(pairs)]
        if not any(missing):
            return value
        around = [n for amount in reversed(missing) for n in (0, amount)]
        grown: Tensor = pad_tensor(value, around, value=self.pad_value)
        return grown


#: concatenated in the first dimension, as most processors do
_CONCATENATED = JoinRule()


def join(inputs_of_each: Iterable[Inputs], join_rules: Mapping[str, JoinRule] | None = None) -> dict[str, Tensor]:
    """Join members' inputs into one tensor for each name, by its rule or by concatenation; ValueError if none fits."""
    inputs_of_each = [part for part in inputs_of_each if part]
    joined = {}
    alike = {name for name, rule in (join_rules or {}).items() if rule.only_alike_reason}
    if len({frozenset(part.keys() & alike) for part in inputs_of_each} - {frozenset()}) > 1:
        why = next(rule.only_alike_reason for rule in (join_rules or {}).values() if rule.only_alike_reason)
        raise ValueError(f"{', '.join(sorted(alike))} of these members can't be joined: {why}")
    for name in dict.fromkeys(name for part in inputs_of_each for name in part):
        try:
            joined[name] = _joined_input(name, (join_rules or {}).get(name, _CONCATENATED), inputs_of_each)
        except (RuntimeError, ValueError, IndexError) as error:
            shapes = " and ".join(dict.fromkeys(str([*part[name].shape]) for part in inputs_of_each if name in part))
            raise ValueError(f"{name} of these members can't be joined, {shapes}: {error}") from None
    return joined


def _joined_input(name: str, rule: JoinRule, parts: Sequence[Inputs]) -> Tensor:
    having = [part for part in parts if name in part]
    counted = [part[rule.indexed_input[0]] for part in having] if rule.indexed_input else []
    return rule([part[name] for part in having], counted)


@dataclass(frozen=True)
class FoundJoins:
    """How a processor's media inputs of several members are joined, as a comparison of its calls showed."""

    #: rules by the name of the input
    joins: Mapping[str, JoinRule]
    #: whether one call for all members gives the same as one call for each
    can_call_once: bool
    #: why media of several sizes, or clips of several lengths, can't be joined; empty: they can
    limit: str = ""


class JoinError(ValueError):
    """A processor's media inputs of several members can't be joined by any rule."""


def find_joins(
    call: Callable[[Sequence[_Media], bool], dict[str, Tensor]], members: Sequence[_Media], twins: Sequence[_Media]
) -> FoundJoins:
    """Compare calls of a processor for several members with calls for each; return the rules that join their outputs.

    Args:
        call: calls the processor for media of members: False: all in one text, True: those of each in their own text.
        members: media of members, in different sizes.
        twins: media of members, all in one size, for processors that take only equal sizes in one call.
    """
    members, of_each = _outputs_alone(call, members)
    first: Exception | None = None
    for tried, as_rows in ((members, False), (members, True), (twins, False), (twins, True)):
        if as_rows and isinstance(first, JoinError):
            continue  # a common text gave other values; a text for each member can't explain them
        try:
            together = call(tried, as_rows)
            parts = of_each if tried is members else [call([one], False) for one in twins]
        except Exception as error:  # any class of any processor may be behind it
            first = first or error
            continue
        names = {name for part in (*of_each, *parts) for name in part}
        if strange := sorted(names ^ together.keys()):
            raise JoinError(f"{', '.join(strange)}: in the media of one member alone, or of several alone")
        joins = {name: rule for name in sorted(names) if (rule := _find_rule(name, parts, together[name]))}
        if lost := sorted(names - joins.keys()):
            first = first or JoinError(f"no rule joins {', '.join(lost)} of several members")
            continue
        limit = "" if tried is members else _join_error_text(of_each, joins)
        if limit and (padded := _padding_joins(call, members, of_each)):
            return FoundJoins(padded, can_call_once=False)
        return FoundJoins(joins, tried is members and not as_rows, limit)
    why = first if isinstance(first, JoinError) else JoinError(f"{type(first).__name__}: {first}")
    if alike := _equal_size_joins(call, twins, str(why)):
        return FoundJoins(alike, can_call_once=False, limit=str(why))
    raise why


def _equal_size_joins(
    call: Callable[[Sequence[_Media], bool], dict[str, Tensor]], twins: Sequence[_Media], why: str
) -> dict[str, JoinRule]:
    """Return rules for members of one size, if the call for several adds only masks that hide nothing; else none."""
    try:
        together, parts = call(twins, False), [call([one], False) for one in twins]
    except Exception:  # any class of any processor may be behind it
        return {}
    added = [together[name] for name in together.keys() - parts[0].keys()]
    rule = JoinRule(only_alike_reason=why)
    shared = parts[0].keys() & together.keys()
    is_same = all(_find_rule(name, parts, together[name]) == JoinRule() for name in shared)
    hides_nothing = added and all(not mask.is_floating_point() and bool(mask.all()) for mask in added)
    return dict.fromkeys(together, rule) if hides_nothing and is_same else {}


def _padding_joins(
    call: Callable[[Sequence[_Media], bool], dict[str, Tensor]], members: Sequence[_Media], of_each: Sequence[Inputs]
) -> dict[str, JoinRule] | None:
    """Return rules that pad inputs, if values differ only where a mask or a length tells padding, or at its edge.

    None: an input has no such rule. The guard refuses a model that reads padding: it compares packs with samples alone.
    """
    together: Inputs = {}
    for as_rows in (False, True):
        with suppress(Exception):  # any class of any processor may be behind it
            together = together or call(members, as_rows)
    masks = {name for name, value in together.items() if not value.is_floating_point() and value.dim() == 2}
    joins: dict[str, JoinRule] = {}
    for name, value in sorted(together.items()):
        if not all(name in part for part in of_each):
            return None
        shown = (_rule_by_mask(name, mask, of_each, together) for mask in masks)
        rule = _find_rule(name, of_each, value) or next(filter(None, shown), None)
        rule = rule or _rule_by_lengths(name, of_each, together)
        if rule is None:
            return None
        joins[name] = rule
    return joins or None


def _rule_by_mask(name: str, mask: str, of_each: Sequence[Inputs], together: Inputs) -> JoinRule | None:
    """Return the rule that pads an input to the longest member, if values differ only where a mask hides them."""
    value, seen = together[name], _without_edge(together[mask] != 0)
    rule = JoinRule(0, pad_value=0.0)
    try:
        joined = _joined_input(name, rule, of_each)
    except RuntimeError:
        return None
    along = next((dim for dim in range(1, value.dim()) if value.shape[dim] == seen.shape[1]), None)
    if joined.shape != value.shape or along is None or len(seen) != len(value):
        return None
    rows, of_call = (values.transpose(1, along)[seen] for values in (joined, value))
    return rule if _are_equal(rows, of_call) else None


def _rule_by_lengths(name: str, of_each: Sequence[Inputs], together: Inputs) -> JoinRule | None:
    """Return the rule that pads an input to the longest member, if another input has the length of each row."""
    value, rule = together[name], JoinRule(0, pad_value=0.0)
    lengths = [
        tensor
        for tensor in together.values()
        if tensor.dim() == 1 and not tensor.is_floating_point() and len(tensor) == len(value)
    ]
    num_rows = [len(part[name]) for part in of_each]
    if not any(len(tensor.unique()) > 1 for tensor in lengths) or sum(num_rows) != len(value):
        return None
    rows = value.split(num_rows)
    return rule if all(_begins_with(tensor, part[name]) for tensor, part in zip(rows, of_each, strict=True)) else None


def _begins_with(value: Tensor, part: Tensor) -> bool:
    """Say whether a value is a part with padding behind it, in any dimension."""
    if part.dim() != value.dim() or any(size > whole for size, whole in zip(part.shape, value.shape, strict=True)):
        return False
    return _are_equal(value[tuple(map(slice, part.shape))], part)


def _without_edge(mask: Tensor) -> Tensor:
    """Return a mask without its last `_EDGE_FRAMES` visible positions, whose features depend on the padding."""
    return mask & torch.cat([mask[:, _EDGE_FRAMES:], torch.zeros_like(mask[:, :_EDGE_FRAMES])], dim=1)


def _outputs_alone(
    call: Callable[[Sequence[_Media], bool], dict[str, Tensor]], members: Sequence[_Media]
) -> tuple[list[_Media], list[dict[str, Tensor]]]:
    """Return the members that the processor takes alone, and its output for each; raise its error if fewer than two."""
    taken: list[_Media] = []
    outputs: list[dict[str, Tensor]] = []
    errors: list[Exception] = []
    for one in members:
        try:
            outputs.append(call([one], False))
            taken.append(one)
        except Exception as error:  # any class of any processor may be behind it
            errors.append(error)
    if len(outputs) < 2:
        raise errors[0]
    return taken, outputs


def _join_error_text(parts: Sequence[Inputs], joins: Mapping[str, JoinRule]) -> str:
    try:
        join(parts, joins)
    except ValueError as error:
        return str(error)
    return ""


def _find_rule(name: str, parts: Sequence[Inputs], together: Tensor) -> JoinRule | None:
    having = [part for part in parts if name in part]
    if not having or any(part[name].dim() != together.dim() or part[name].dtype != together.dtype for part in having):
        return None
    for rule in _candidate_rules(name, having, together.dim()):
        try:
            joined = _joined_input(name, rule, having)
        except RuntimeError:
            continue
        if joined.shape == together.shape and _are_equal(joined, together):
            return rule
    return None


def _candidate_rules(name: str, having: Sequence[Inputs], num_dims: int) -> Iterator[JoinRule]:
    along = [JoinRule(dim) for dim in range(num_dims)]
    yield from along
    yield from (replace(rule, pad_value=fill) for fill in _PAD_VALUES for rule in along)
    if not having[0][name].is_floating_point():
        counted = [other for other in having[0] if other != name and all(other in part for part in having)]
        yield from (JoinRule(indexed_input=(other, dims)) for other in counted for dims in (1, 2))


def _are_equal(first: Tensor, second: Tensor) -> bool:
    if first.is_floating_point():
        return torch.allclose(first, second, rtol=0, atol=1e-5, equal_nan=True)
    return torch.equal(first, second)
