"""Test whether a model keeps the members of a pack apart, with members that have its own kinds of media.

The test makes two comparisons. When one member is changed, the other members' logits must not change. And each member's
logits in a pack must equal its logits alone, run as users of transformers run it: the processor's output, a mask of
ones, no positions of ours.

Runs on a CPU in seconds, on a `small_model`.
"""

import copy
import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from energon_pack.training.batch import PackedBatch
from energon_pack.training.inputs import attention_of, check_inputs, has_rope_rows
from energon_pack.training.joining import join
from energon_pack.training.layout import Form, neat
from energon_pack.training.masks import is_answer, reads_prefix_whole
from energon_pack.training.members import Encoded
from energon_pack.training.own_rope import HEARD, are_heard
from energon_pack.training.trial_inputs import is_content, special_ids

_PAD_TAIL = 3  # tokens behind the last member


@dataclass(frozen=True)
class Finding:
    """How far logits moved when one member was changed."""

    #: largest difference in any other member's logits: 0 if nothing is mixed
    others: float
    #: largest difference in the changed member's own logits
    own: float
    #: largest difference between a member's logits in the pack and alone
    alone: float
    #: a smaller share of `own` counts as no difference; sums in another order differ by about 1e-6 of the logits
    tolerance: float = 1e-4
    #: whether the model was in train(), in which some classes use other kernels
    in_training: bool = False

    @property
    def mixes(self) -> bool:
        """Whether a member's logits depend on the others, or on being packed.

        If a change does not move the member's own logits, the test proves nothing and this is true.
        """
        return not (max(self.others, self.alone) <= self.tolerance * self.own and self.own > 1e-5)

    @property
    def may_be_rounding(self) -> bool:
        """Whether the difference is so small that it may be rounding, which a run in float64 can tell."""
        return self.mixes and max(self.others, self.alone) <= 10 * self.tolerance * self.own

    def __str__(self) -> str:
        where = "in train(), " if self.in_training else ""
        return (
            f"{where}one member changed, its own logits move by {self.own:.2g}, those of others by {self.others:.2g};"
            f" packed and alone differ by {self.alone:.2g}"
        )


def probe(model: Any, members: Sequence[Encoded], mask: str = "positions", changed: int = 0) -> Finding:
    """Run packs through a model twice; between the runs the words and pixels of one member change.

    A batch has two packs, the second in reverse order, so that the changed member stands before and after every other.
    It has one pack if the mask is `hybrid`.

    Args:
        model: a model of transformers, or one with the same `forward`; its train or eval mode stays.
        members: at least two.
        mask: how members are kept apart: `model.mask`.
        changed: index of the member to change.

    Raises:
        MixingError: the inputs alone would mix members.
    """
    return next(_findings(model, members, mask, [changed]))


def probe_all(model: Any, members: Sequence[Encoded], mask: str = "positions") -> Finding:
    """Call `probe` for each changed member in turn, and for the first once more in train().

    Args:
        model: a model with nothing random in train(). It is left in eval().

    Returns:
        The first finding that mixes. If none does: the largest `others`, the largest `alone` and the smallest `own`. A
        difference that may be rounding (recursion lets it grow) is tested again in float64, if the class can run in it.
    """
    finding = _worst(model, members, mask)
    if not finding.may_be_rounding or model.dtype == torch.float64:
        return finding
    try:
        in_double = _worst(copy.deepcopy(model).double(), [_doubled(member) for member in members], mask)
    except RuntimeError:
        return finding
    return finding if in_double.mixes else in_double


def _doubled(member: Encoded) -> Encoded:
    media = {name: value.double() if value.is_floating_point() else value for name, value in member.media.items()}
    return replace(member, media=media)


def _worst(model: Any, members: Sequence[Encoded], mask: str) -> Finding:
    findings = []
    try:
        for in_training, changed in ((False, range(len(members))), (True, range(1))):
            _train(model, in_training)
            for finding in _findings(model, members, mask, changed):
                if finding.mixes:
                    return replace(finding, in_training=in_training)
                findings.append(finding)
    finally:
        model.eval()
    others, alone = max(one.others for one in findings), max(one.alone for one in findings)
    return replace(findings[0], others=others, own=min(one.own for one in findings), alone=alone)


@contextmanager
def trained_in(model: Any) -> Iterator[None]:
    """Switch a model to train() and back to eval()."""
    _train(model, True)
    try:
        yield
    finally:
        model.eval()


def _train(model: Any, in_training: bool) -> None:
    """Switch the mode, but leave batch norm in eval(): `guard` refuses a model that trains it."""
    model.train(in_training)
    for part in model.modules():
        if isinstance(part, _BatchNorm):
            part.eval()


def _findings(model: Any, members: Sequence[Encoded], mask: str, changed: Sequence[int]) -> Iterator[Finding]:
    before = _packed(model, members, mask)
    alone = [plain_logits(model, member) for member in members]
    apart = max(max(_differences(row, alone)) for row in before)
    tolerance = 5e-2 if model.dtype.itemsize < 4 else 1e-4
    by_media = _moved_by_media(model, members, mask, before)
    for index in changed:
        other = _changed(members[index], model.config)
        after = _packed(model, [*members[:index], other, *members[index + 1 :]], mask)
        differences = [_differences(some, others) for some, others in zip(before, after, strict=True)]
        own = max(row[index] for row in differences)
        others = max(difference for row in differences for i, difference in enumerate(row) if i != index)
        yield Finding(max(others, by_media), own, apart, tolerance)


def _moved_by_media(model: Any, members: Sequence[Encoded], mask: str, before: Sequence[Sequence[Tensor]]) -> float:
    """Return how far the media of other members move logits: of a second row, or in one row of members behind them.

    Elsewhere all rows have the same media, so a mean over the media of a batch is the same as over one row.
    """
    others = [replace(member, media=_other_media(member)) for member in members]
    with_media = [number for number, member in enumerate(members) if member.media]
    if not with_media:
        return 0.0
    if len(before) > 1:
        return max(_differences(before[1], _packed(model, members, mask, others)[1]))
    same, changed = (
        _packed(model, [*members, *(each[number] for number in with_media)], mask)[0] for each in (members, others)
    )
    return max(_differences(same[: len(members)], changed[: len(members)]))


def probe_inputs(
    model: Any, members: Sequence[Encoded], mask: str = "positions", first: Sequence[Encoded] | None = None
) -> dict[str, Any]:
    """Return the inputs of a forward of these members: two packs, or one if the mask is `hybrid`.

    Args:
        first: the members of the first pack, if they are others.
    """
    rows = [first or members] if mask == "hybrid" else [first or members, members[::-1]]
    width = sum(len(member.tokens) for member in members) + _PAD_TAIL
    form = Form(rope=has_rope_rows(model), width=width)
    batch = PackedBatch(neat([[member.tokens for member in row] for row in rows], form))
    joins = {name: rule for member in members for name, rule in member.joins.items()}
    batch |= join((member.media for row in rows for member in row), joins)
    batch["media_keys"] = sorted({name for member in members for name in (*member.media, *member.tokens.rows)})
    batch.mask = mask
    if mask == "indexed":
        batch["attention_mask"] = batch["doc_ids"]
    inputs = batch.to(model.device).model_inputs(model)
    del inputs["labels"]  # there is no need for a loss
    return inputs


def _packed(
    model: Any, members: Sequence[Encoded], mask: str, first: Sequence[Encoded] | None = None
) -> list[list[Tensor]]:
    """Return for each pack the logits of its members, in the order of `members`; `first` as in `probe_inputs`."""
    inputs = probe_inputs(model, members, mask, first)
    check_inputs(inputs, getattr(model.config, "_attn_implementation", None))
    with _as_run(model):
        logits = model(**inputs).logits.detach()
    lengths = [len(member.tokens) for member in members]
    forward = logits[0, : sum(lengths)].split(lengths)
    if len(logits) == 1:
        return [list(forward)]
    return [list(forward), list(logits[1, : sum(lengths)].split(lengths[::-1]))[::-1]]


def _as_run(model: Any) -> torch.set_grad_enabled:
    """Enable gradients in train(), as some code checks them instead of the mode; on a CPU flex_attention has none."""
    has_none = model.device.type == "cpu" and attention_of(model) == "flex_attention"
    return torch.set_grad_enabled(model.training and not has_none)


def plain_logits(model: Any, member: Encoded) -> Tensor:
    """Return the logits of a member as a user of transformers gets them, from a processor's output."""
    with _as_run(model):
        logits: Tensor = model(**plain_inputs(model, member)).logits[0].detach()
    return logits


def plain_inputs(model: Any, member: Encoded) -> dict[str, Any]:
    """Return the inputs of a member as a user of transformers has them, from a processor's output."""
    ids, types = member.tokens.ids[None].to(model.device), member.tokens.types[None].to(model.device)
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    accepted = inspect.signature(model.forward).parameters
    # Without images no processor gives token_type_ids; GPT-2 would add embeddings for them.
    kinds = ("mm_token_type_ids", "token_type_ids") if member.tokens.types.any() else ("mm_token_type_ids",)
    inputs |= {name: types for name in kinds if name in accepted}
    if HEARD in accepted and are_heard(member.tokens.types):
        inputs[HEARD] = True
    if reads_prefix_whole(type(model), model.config):
        labels = member.tokens.labels[None].to(model.device)
        inputs["token_type_ids"] = is_answer(torch.ones_like(ids), labels).long()
    inputs |= {name: value.to(model.device) for name, value in member.media.items()}
    if member.media:
        inputs |= {name: row[None].to(model.device) for name, row in member.tokens.rows.items()}
    return {**inputs, "use_cache": False}


def _differences(some: Sequence[Tensor], others: Sequence[Tensor]) -> list[float]:
    return [float((a.float() - b.float()).abs().max()) for a, b in zip(some, others, strict=True)]


def _changed(member: Encoded, config: Any) -> Encoded:
    tokens, vocabulary = member.tokens, config.get_text_config().vocab_size
    words = 10 + (tokens.ids + 7) % max(1, vocabulary - 10) if vocabulary > 20 else (tokens.ids + 7) % vocabulary
    # Special tokens may steer a model (they mark images): only the last words of the text are changed.
    of_media = torch.isin(tokens.ids, torch.tensor(special_ids(config, of_media=True)).to(tokens.ids))
    of_media |= tokens.types != 0  # Granite Speech has no types
    is_word = ~of_media
    is_word[: int(of_media.nonzero().max()) + 2 if of_media.any() else 0] = False
    tokens = replace(tokens, ids=torch.where(is_word, words, tokens.ids))
    return replace(member, tokens=tokens, media=_other_media(member))


def _other_media(member: Encoded) -> dict[str, Tensor]:
    """Return the media of a member with other pixels and features."""
    return {
        name: value.flip(0) + 0.5 if value.is_floating_point() and is_content(name) else value
        for name, value in member.media.items()
    }
