"""Compare packs with their members alone in a small model of a class, in eval() and in train()."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from energon_pack.training.comparison import Way, compare
from energon_pack.training.encoded import Encoded
from energon_pack.training.finding import Finding
from energon_pack.training.inputs import KINDS, attention_of, check_inputs, has_rope_rows
from energon_pack.training.probe import plain_inputs, probe_of, rows_of
from energon_pack.training.probe_tree import ProbeTree, tree_batch

#: shares that count as no difference: in float32; in shorter types, for which encoders of media round a pack otherwise.
#: Text in bfloat16 on an H100, flash-attn: 90 classes have at most 0.016; BlenderbotSmall, which mixes, has 0.031.
_TOLERANCE, _SHORT_TEXT, _SHORT_MEDIA = 1e-4, 2e-2, 5e-2
#: packs of members, or trees of them
Samples = Sequence[Encoded] | ProbeTree


def samples_of(samples: Samples) -> Sequence[Encoded]:
    """Return the samples of packs or trees."""
    return samples.samples if isinstance(samples, ProbeTree) else samples


def try_class(model: Any, samples: Samples, mask: str = "positions") -> Finding:
    """Compare outputs in eval(), and outputs, loss and gradients in train().

    Args:
        model: with nothing random in train(). It is left in eval(), without gradients.
        samples: at least two members, or trees.
        mask: how members are kept apart: `model.mask`; trees have no choice.

    Returns:
        A finding that mixes, or that of train(). A difference that may be rounding (recursion lets it grow) is tried
        again in float64, if the class can run in it.

    Raises:
        MixingError: the inputs alone would mix members.
    """
    finding = _worst(model, samples, mask)
    if not finding.may_be_rounding or model.dtype == torch.float64:
        return finding
    try:
        in_double = _worst(copy.deepcopy(model).double(), samples, mask)
    except RuntimeError:
        return finding
    return finding if in_double.mixes else in_double


def _cast(samples: Samples, dtype: torch.dtype) -> Samples:
    """Give media the model's dtype: flash attention takes only halves, and processors make float32."""
    if isinstance(samples, ProbeTree):
        return samples
    return [
        replace(one, media={k: v.to(dtype) if v.is_floating_point() else v for k, v in one.media.items()})
        for one in samples
    ]


def _worst(model: Any, samples: Samples, mask: str) -> Finding:
    samples = _cast(samples, model.dtype)
    try:
        _train(model, True)
        trained = _tried(model, samples, mask)
        _train(model, False)
        evaluated = _tried(model, samples, mask)
    finally:
        model.eval()
        model.zero_grad(set_to_none=True)
    if trained.mixes:
        return replace(trained, in_training=not evaluated.mixes)
    return evaluated if evaluated.mixes else trained


def _train(model: Any, in_training: bool) -> None:
    """Switch the mode, but leave batch norm in eval(): `guard` refuses a model that trains it."""
    model.train(in_training)
    for part in model.modules():
        if isinstance(part, _BatchNorm):
            part.eval()


def _tried(model: Any, samples: Samples, mask: str) -> Finding:
    follow = model.training and not (model.device.type == "cpu" and "flex" in (attention_of(model) or ""))
    with torch.set_grad_enabled(follow):
        alone: Callable[[], AbstractContextManager[None]] = nullcontext
        if isinstance(samples, ProbeTree):
            probe, alone = tree_batch(samples, has_rope_rows(model)), partial(_as_users_do, model)
        else:
            probe = probe_of(model, rows_of(samples, mask), mask)
        inputs = probe.batch.to(model.device).model_inputs(model, labels=False)
        check_inputs(inputs, attention_of(model))
        weights = [one for one in model.parameters() if one.requires_grad]
        short = _SHORT_MEDIA if any(one.media for one in samples_of(samples)) else _SHORT_TEXT
        way = Way(model, partial(plain_inputs, model), model, (_TOLERANCE, short), follow, weights, alone=alone)
        return compare(way, probe, inputs)


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
