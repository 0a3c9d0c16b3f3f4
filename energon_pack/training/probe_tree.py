"""Test whether a model gives each sample of a tree the logits, the loss and the gradients that it has alone.

Logits are not enough: with a fork right before an answer and labels shifted as in a plain row they stay equal, and the
gradients are a few hundredths off. So a small tree is trained on, and each of its samples alone, in transformers' plain
way: a processor's output, a mask of ones, no positions of ours.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from energon_pack.training.batch import PackedBatch, total_weight, weighted_loss
from energon_pack.training.inputs import attention_of, check_inputs, has_rope_rows
from energon_pack.training.joining import join
from energon_pack.training.layout import IGNORE, Form, loss_weights
from energon_pack.training.members import Encoded
from energon_pack.training.probe import plain_inputs, trained_in
from energon_pack.training.tree_attention import KINDS
from energon_pack.training.trees import neat_trees, paths

_PAD_TAIL = 3  # tokens behind the last member
_WEIGHTS = "sample"  # each sample's own number of trained tokens counts


@dataclass(frozen=True)
class ProbeTree:
    """The samples of a few trees, depth first."""

    #: the whole members, each with all of its media; `shared_len` is the length of its shared beginning
    samples: list[Encoded]
    #: the media that each one adds
    added: list[Mapping[str, Tensor]]


@dataclass(frozen=True)
class TreeFinding:
    """How far a tree is from its samples alone."""

    #: largest difference of a logit
    logits: float
    #: relative difference of the loss
    loss: float
    #: largest difference of a parameter's gradient, as a share of the largest gradient; None: attention has none here
    gradients: float | None
    #: what counts as no difference
    tolerance: float = 1e-4

    @property
    def mixes(self) -> bool:
        """Whether a sample of the tree is trained on as it would not be alone."""
        worst = max(self.logits, self.loss, self.gradients or 0.0)
        return not worst <= self.tolerance  # so that NaN mixes

    def __str__(self) -> str:
        gradients = "not tried: attention has none here" if self.gradients is None else f"{self.gradients:.2g}"
        return (
            f"a tree against its samples alone: logits {self.logits:.2g}, loss {self.loss:.2g}, gradients {gradients}"
        )


def probe_tree(members: Sequence[Encoded], joined: Callable[[Sequence[Encoded]], Encoded]) -> ProbeTree:
    """Make trees of some members: media in the root and in a branch, a fork in a fork, a fork right before an answer.

    Two samples are equal, one ends inside others, and their weights differ.

    Args:
        members: at least two of text; the first with an image or video begins all.
        joined: makes one sample of several members.
    """
    texts = [member for member in members if not member.media]
    first, *others = [member for member in members if member.media] or texts[:1]
    some, text = texts[0], texts[-1]
    answer = max(1, int((text.tokens.labels != IGNORE).nonzero()[0])) - 1  # the last token before the answer
    asked = [_part(text, 0, answer)] if answer else []
    said, other = _part(text, answer), _turned(_part(text, answer))
    listed: list[tuple[list[Encoded], float]] = [
        ([first], 1.0),
        ([first, *asked, said], 0.5),
        ([first, *asked, other], 1.0),
        ([first, some], 1.0),
        ([first, some, (others or [first])[0]], 2.0),
        ([first, some, *asked, other], 3.0),
        ([first, some, *asked, other], 1.0),
    ]
    for one in others:
        listed += [([one, *asked, said], 1.0), ([one, *asked, other], 1.0)]
    before: list[Encoded] = []
    samples: list[Encoded] = []
    added: list[Mapping[str, Tensor]] = []
    for parts, factor in listed:
        num = next(
            (i for i, (a, b) in enumerate(zip(before, parts, strict=False)) if a is not b), min(len(before), len(parts))
        )
        whole = joined(parts)
        shared = sum(len(part.tokens) for part in parts[:num])
        samples.append(replace(whole, tokens=replace(whole.tokens, factor=factor, shared_len=shared)))
        added.append(join([part.media for part in parts[num:]], whole.joins))
        before = parts
    return ProbeTree(samples, added)


def _part(member: Encoded, start: int, end: int | None = None) -> Encoded:
    """Return some tokens of a text."""
    tokens, cut = member.tokens, slice(start, end)
    return replace(
        member, tokens=replace(tokens, ids=tokens.ids[cut], labels=tokens.labels[cut], types=tokens.types[cut])
    )


def _turned(member: Encoded) -> Encoded:
    """Return the tokens behind the first in reverse."""
    tokens = member.tokens
    ids, labels = (torch.cat([row[:1], row[1:].flip(0)]) for row in (tokens.ids, tokens.labels))
    return replace(member, tokens=replace(tokens, ids=ids, labels=labels))


def tree_batch(tree: ProbeTree, rope: bool) -> PackedBatch:
    """Lay the trees out in one row.

    Args:
        rope: with M-RoPE rows.
    """
    tokens = [sample.tokens for sample in tree.samples]
    width = sum(len(member) - member.shared_len for member in tokens) + _PAD_TAIL
    batch = PackedBatch(neat_trees([tokens], Form(rope=rope, width=width, weights=_WEIGHTS)))
    joins = {name: rule for sample in tree.samples for name, rule in sample.joins.items()}
    batch |= join(tree.added, joins)
    rows = {name for sample in tree.samples for name in (*sample.media, *sample.tokens.rows)}
    batch["media_keys"] = sorted(rows)
    return batch


def compare(model: Any, tree: ProbeTree) -> TreeFinding:
    """Train on a tree, and on each of its samples alone, and compare.

    Args:
        model: a small model with nothing random in train(). It is left in eval(), without gradients.

    Raises:
        MixingError: the inputs alone would mix members.
    """
    has_gradients = not (model.device.type == "cpu" and "flex" in (attention_of(model) or ""))
    with trained_in(model), torch.set_grad_enabled(has_gradients):
        batch = tree_batch(tree, has_rope_rows(model)).to(model.device)
        total = total_weight(batch)
        inputs = batch.model_inputs(model, labels=False)
        check_inputs(inputs, attention_of(model))
        with _as_users_do(model):
            alone, loss_alone, wanted = _alone(model, tree, total, has_gradients)
        logits = model(**inputs).logits
        labels = batch["labels"]
        batch["labels"] = torch.where(
            labels == IGNORE, IGNORE, labels % logits.shape[-1]
        )  # a small model has few logits
        loss = weighted_loss(logits, batch, total)
        found = _gradients(model, loss) if has_gradients else {}
        model.zero_grad(set_to_none=True)
    places = paths([len(one.tokens) for one in tree.samples], [one.tokens.shared_len for one in tree.samples])
    rows = [logits[0, place.to(logits.device)].detach() for place in places]
    furthest = max(float((row - one).abs().max()) for row, one in zip(rows, alone, strict=True))
    largest = max(float(one.abs().max()) for one in alone)
    tolerance = 5e-2 if model.dtype.itemsize < 4 else 1e-4
    gradients = _difference(found, wanted) if has_gradients else None
    return TreeFinding(
        furthest / largest, abs(float(loss.detach()) - loss_alone) / abs(loss_alone), gradients, tolerance
    )


@contextmanager
def _as_users_do(model: Any) -> Iterator[None]:
    """Let a model attend by its class's own function, where it attends by ours or by FlexAttention.

    FlexAttention on a CPU has wrong values for texts of some lengths (torch 2.13).
    """
    text = model.config.get_text_config()
    before = text._attn_implementation
    if before in KINDS or before == "flex_attention":
        text._attn_implementation = "eager"
    try:
        yield
    finally:
        text._attn_implementation = before


def _alone(
    model: Any, tree: ProbeTree, total: Tensor, has_gradients: bool
) -> tuple[list[Tensor], float, dict[str, Tensor]]:
    """Return the logits of each sample alone, the sum of their losses, and its gradients."""
    logits: list[Tensor] = []
    sum_of_losses = 0.0
    sum_of_gradients: dict[str, Tensor] = {}
    for sample in tree.samples:
        own = model(**plain_inputs(model, sample)).logits[0]
        weights = loss_weights(sample.tokens, _WEIGHTS)[1:].to(own.device)
        targets = sample.tokens.ids[1:].to(own.device) % own.shape[-1]
        each = cross_entropy(own[:-1].float(), targets, reduction="none")
        loss = ((each * weights).sum(dtype=torch.float64)) / total
        logits.append(own.detach())
        sum_of_losses += float(loss.detach())
        for name, value in (_gradients(model, loss) if has_gradients else {}).items():
            sum_of_gradients[name] = sum_of_gradients.get(name, 0) + value
    return logits, sum_of_losses, sum_of_gradients


def _gradients(model: Any, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad(set_to_none=True)
    loss.backward()
    return {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}


def _difference(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> float:
    """Return the largest difference, as a share of the largest gradient."""
    zero = torch.zeros(())
    largest = max(float(value.abs().max()) for value in wanted.values())
    names = found.keys() | wanted.keys()
    return max(float((found.get(n, zero) - wanted.get(n, zero)).abs().max()) for n in names) / largest
