"""Prove that a model class keeps members apart, and find the mask with which it does.

    guard(model, encoder) ─prove─► a small model of the same class and config ─probe─► Proof

A class is exact with `positions`, with masks (`dict4d`, `prefix4d`), or with its kernels (`hybrid`). Any other class is
refused, and the error names a setting that was probed and works, if there is one. It is tried in eval() and in train().
The tolerances stand here.
"""

import copy
import inspect
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch.nn import Module
from torch.nn.modules.batchnorm import _BatchNorm

from energon_pack.errors import one_line
from energon_pack.training.comparison import RunOptions, compare
from energon_pack.training.finding import BatchDifference, MaskTry
from energon_pack.training.forward_inputs import TREE_ATTENTION, attention_implementation_of, check_inputs
from energon_pack.training.masks import has_bidirectional_prefix
from energon_pack.training.model_wrappers import class_of, configs_in
from energon_pack.training.probe_batches import (
    ProbeSamples,
    ProbeTree,
    probe_of_rows,
    probe_of_tree,
    put_twins_in_rows,
    samples_of,
)
from energon_pack.training.restored_model import without_tf32
from energon_pack.training.small_model import build_small_model
from energon_pack.training.trial_inputs import SOUND_INPUTS

#: masks that `auto` tries, in this order
_AUTO_MASKS = ("positions", "dict4d", "hybrid")
#: shares that count as no difference: in float32; in shorter types, for which encoders of media round a pack otherwise.
#: Text in bfloat16 on an H100, flash-attn: 90 classes have at most 0.016; BlenderbotSmall, which mixes, has 0.031.
_FLOAT32_TOLERANCE, _SHORT_TEXT_TOLERANCE, _SHORT_MEDIA_TOLERANCE = 1e-4, 2e-2, 5e-2


#: between a kind of part and one of its attributes
_SETTING = " with "
#: attributes that are switched on and off while a model is trained
_TRAINING_FLAGS = frozenset(("training", "gradient_checkpointing"))


def try_masks(
    make: Any,
    config: Any,
    samples: ProbeSamples,
    mask: str = "auto",
    attention: str | None = None,
    longest: int | None = None,
    device: torch.device | str = "cpu",
    kinds: frozenset[str] | None = None,
) -> list[MaskTry]:
    """Compare packs with each member alone, in a small model of the class `make`; return all tries, an exact one last.

    The first try is for packs of any length. If it fails, the second is for packs of `longest` tokens: it leaves out
    effects that begin beyond them (a scale, a block of keys, other angles of RoPE).

    Args:
        config: the config of the class, of any size; it is not changed.
        samples: at least two members, with each kind of media that packs have; or trees of them.
        mask: `positions`, `dict4d`, `prefix4d`, `hybrid`, `indexed`, or `auto`: the first that is exact. Trees have no
            choice of masks.
        attention: attention implementation; None: the class's own choice.
        longest: tokens of the longest pack; None: not known.
        kinds: kinds of parts that the small model must have: see `part_kinds_of`; None: those of the full-size model.
    """

    @cache
    def small(longest: int | None) -> Any:
        needed = _part_kinds_at_full_size(make, config, attention) if kinds is None else kinds
        model = build_small_model(make, config, attention, longest, samples_of(samples), device)
        lost = needed - part_kinds_of(model)
        if lost:  # what a user set or put in is in no model of a config: the model is tried with it
            lost &= _part_kinds_at_full_size(make, config, attention) or {one for one in lost if _SETTING not in one}
        if lost:
            raise ValueError(f"a small copy of it has no {min(lost)}")
        return model

    proofs: list[MaskTry] = []
    for name in masks_to_try(make, config, samples) if mask == "auto" else (mask,):
        proofs.append(_attempt(MaskTry(make.__name__, attention or "default", name), small, samples, longest))
        if proofs[-1].is_exact:
            break
    return proofs


def _attempt(proof: MaskTry, small: Callable[[int | None], Any], samples: ProbeSamples, longest: int | None) -> MaskTry:
    start = time.perf_counter()
    try:
        with without_tf32():
            model = small(None)
            proof = replace(proof, finding=try_small_model(model, samples, proof.mask))
            if longest and not proof.is_exact and (other := small(longest)).config != model.config:
                proof = replace(proof, finding=try_small_model(other, samples, proof.mask), max_pack_len=longest)
    except Exception as error:  # foreign code, with inputs it may not be made for
        proof = replace(proof, error=one_line(error, 300))
    return replace(proof, seconds=round(time.perf_counter() - start, 2))


def masks_to_try(make: Any, config: Any, samples: ProbeSamples) -> Sequence[str]:
    if isinstance(samples, ProbeTree):
        return ("",)
    return ("prefix4d",) if has_bidirectional_prefix(make, config) else _AUTO_MASKS


def _part_kinds_at_full_size(make: Any, config: Any, attention: str | None) -> frozenset[str]:
    """Return the kinds of parts of the full-size model, built without weights; empty if that is impossible."""
    if not hasattr(make, "_from_config"):
        return frozenset()
    is_named = attention and attention != TREE_ATTENTION  # this package's is of the text part alone
    chosen = {"attn_implementation": attention} if is_named else {}  # some models have a layer class for each
    with torch.device("meta"):
        return part_kinds_of(make._from_config(copy.deepcopy(config), **chosen))


def part_kinds_of(model: Module) -> frozenset[str]:
    """Return the kinds of a model's parts: each class, and each class with one of its bool, str or None attributes.

    Parts from other packages (adapters, quantized weights) are left out.
    """
    homes = set(_defining_modules(model))
    kinds = set()
    for part in model.modules():
        kind = class_of(part)
        if kind.__module__ in homes:
            is_whole = hasattr(part, "_from_config")  # trainers keep notes on these
            values = {} if is_whole else {k: v for k, v in vars(part).items() if not k.startswith("_")}
            kinds.add(kind.__name__)
            kinds |= {
                f"{kind.__name__}{_SETTING}{name}={value}"
                for name, value in values.items()
                if isinstance(value, (bool, str, type(None))) and name not in _TRAINING_FLAGS
            }
    return frozenset(kinds)


def replaced_forwards(model: Module) -> list[str]:
    """Return the names of parts whose `forward` was replaced; a decorated forward of the class does not count."""
    return [
        name or type(model).__name__
        for name, part in model.named_modules()
        if "forward" in vars(part) and _undecorated(vars(part)["forward"]) is not _undecorated(type(part).forward)
    ]


def find_added_part_classes(model: Any) -> list[str]:
    """Return the classes of a model's parts that a model made of its config has not, sorted."""
    own = _part_kinds_at_full_size(class_of(model), model.config, attention_implementation_of(model))
    return sorted(one for one in part_kinds_of(model) - own if _SETTING not in one) if own else []


def _defining_modules(model: Module) -> Iterator[str]:
    """Yield the names of the Python modules that define the model and the models inside it."""
    yield class_of(model).__module__
    for kind in {class_of(part) for part in model.modules()}:
        yield from (base.__module__ for base in kind.__mro__ if hasattr(base, "_from_config"))


def _undecorated(function: Any) -> Any:
    bare = inspect.unwrap(function)
    return getattr(bare, "__func__", bare)


def try_small_model(model: Any, samples: ProbeSamples, mask: str = "positions") -> BatchDifference:
    """Compare packed samples with each alone: outputs in eval(); outputs, loss and gradients in train().

    Returns:
        The finding that mixes, if one does, else that of train(). If the difference may be rounding (recursion lets it
        grow), both modes are tried again in float64, and that finding counts if it does not mix.
    """
    finding = _worst_finding(model, samples, mask)
    if not finding.may_be_rounding or model.dtype == torch.float64:
        return finding
    try:
        in_double = _worst_finding(copy.deepcopy(model).double(), samples, mask)
    except RuntimeError:
        return finding
    return finding if in_double.mixes else in_double


def _cast_media(samples: ProbeSamples, dtype: torch.dtype) -> ProbeSamples:
    """Give media the model's dtype: flash attention takes only halves, and processors make float32."""
    if isinstance(samples, ProbeTree):
        return samples
    return [
        replace(one, media={k: v.to(dtype) if v.is_floating_point() else v for k, v in one.media.items()})
        for one in samples
    ]


def _worst_finding(model: Any, samples: ProbeSamples, mask: str) -> BatchDifference:
    samples = _cast_media(samples, model.dtype)
    try:
        _set_training(model, True)
        trained = _finding_of(model, samples, mask)
        _set_training(model, False)
        evaluated = _finding_of(model, samples, mask)
    finally:
        model.eval()
        model.zero_grad(set_to_none=True)
    if trained.mixes:
        return replace(trained, in_training=not evaluated.mixes)
    return evaluated if evaluated.mixes else trained


def _set_training(model: Any, in_training: bool) -> None:
    """Switch train() or eval(), but leave batch norm in eval(): `guard` refuses a model that trains it."""
    model.train(in_training)
    for part in model.modules():
        if isinstance(part, _BatchNorm):
            part.eval()


def _finding_of(model: Any, samples: ProbeSamples, mask: str) -> BatchDifference:
    follow = model.training and not (
        model.device.type == "cpu" and "flex" in (attention_implementation_of(model) or "")
    )
    with torch.set_grad_enabled(follow):
        alone: Callable[[], AbstractContextManager[None]] = nullcontext
        if isinstance(samples, ProbeTree):
            probe, alone = probe_of_tree(model, samples), partial(_without_tree_attention, model)
        else:
            probe = probe_of_rows(model, put_twins_in_rows(samples, mask), mask)
        check_inputs(probe.inputs, attention_implementation_of(model))
        weights = [one for one in model.parameters() if one.requires_grad]
        short = _SHORT_MEDIA_TOLERANCE if any(one.media for one in samples_of(samples)) else _SHORT_TEXT_TOLERANCE
        way = RunOptions(model, model, (_FLOAT32_TOLERANCE, short), follow, weights, alone_context=alone)
        return compare(way, probe)


@contextmanager
def _without_tree_attention(model: Any) -> Iterator[None]:
    """Run a class's own attention in place of this package's while the block runs."""
    text = model.config.get_text_config()
    before = text._attn_implementation
    if before == TREE_ATTENTION:
        text._attn_implementation = "eager"
    try:
        yield
    finally:
        text._attn_implementation = before


#: attention implementations to try where another one fails, and those for trees
_FALLBACK_ATTENTIONS = ("sdpa", "eager")
_FALLBACK_TREE_ATTENTIONS = (TREE_ATTENTION, *_FALLBACK_ATTENTIONS)


def find_remedy_for_mixing(
    make: Any,
    config: Any,
    samples: ProbeSamples,
    attention: str | None,
    longest: int | None,
    tried: Sequence[MaskTry],
) -> str:
    """Find a mask or an attention implementation with which a class keeps members apart; return the advice as text."""
    masks, seen = {proof.mask for proof in tried}, [*tried]
    is_partly_set = len({getattr(part, "_attn_implementation", None) is None for part in configs_in(config)}) > 1
    config = copy.deepcopy(config)
    config._attn_implementation = None  # a name that is given reaches all parts
    fallbacks = _FALLBACK_TREE_ATTENTIONS if isinstance(samples, ProbeTree) else _FALLBACK_ATTENTIONS
    for name in dict.fromkeys([attention, *fallbacks]):
        for mask in masks_to_try(make, config, samples):
            if name == attention and mask in masks and not is_partly_set:
                continue
            proof = try_masks(make, config, samples, mask, name, longest)[-1]
            seen.append(proof)
            if proof.is_exact:
                settings = [f"PackedTaskEncoder(attention_mask={mask!r})"] if mask not in masks else []
                setting = "use_tree_attention(model)" if name == TREE_ATTENTION else f"attn_implementation={name!r}"
                settings += [setting] if name != attention or is_partly_set else []
                return f"{' and '.join(settings)} keeps them apart ({proof.finding})"
    if isinstance(samples, ProbeTree):
        return "nothing tried here keeps them apart: pack with packing.share=none"
    members = [*samples]
    sounds = [
        number for number, member in enumerate(members) if any(name.startswith(SOUND_INPUTS) for name in member.media)
    ]
    if len(sounds) > 1:
        fewer = [member for number, member in enumerate(members) if number not in sounds[1:]]
        if (proof := try_masks(make, config, fewer, tried[-1].mask, attention, longest)[-1]).is_exact:
            return f"packing.max_audios=1 and a pack a batch keep them apart: there is one sound ({proof.finding})"
    if not any(proof.finding for proof in seen):
        return "nothing could be tried here: does the encoder's processor go with this model?"
    return "nothing tried here keeps them apart: train this class on unpacked samples"
