"""Prove that a model class keeps members apart, and find the mask with which it does.

    guard(model, encoder) ─prove─► a small model of the same class and config ─probe─► Proof, kept for the next start

A class is exact with `positions`, with masks (`dict4d`, `prefix4d`), or with its kernels (`hybrid`). Any other class is
refused, and the error names a setting that was probed and works, if there is one.
"""

import copy
import hashlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

import torch

from energon_pack.errors import one_line
from energon_pack.run.user_cache import keep, read_kept, version_of
from energon_pack.training.as_it_was import full_precision
from energon_pack.training.class_trial import Samples, samples_of, try_class
from energon_pack.training.finding import Finding
from energon_pack.training.inputs import KINDS
from energon_pack.training.makeup import code_of, kinds_of
from energon_pack.training.masks import reads_prefix_whole
from energon_pack.training.probe_tree import ProbeTree
from energon_pack.training.sizes import parts
from energon_pack.training.small_model import small_model
from energon_pack.training.wrapped import class_of

#: raise it when the same input would give another proof
_VERSION = 5
#: masks that `auto` tries, in this order
_MASKS = ("positions", "dict4d", "hybrid")
_PACKAGES = ("torch", "transformers", "flash-attn", "flash-linear-attention", "causal-conv1d", "mamba-ssm", "kernels")


@dataclass(frozen=True)
class Proof:
    """The result for a model class with one mask and one attention implementation."""

    model: str
    attention: str
    #: the mask; empty for trees, which have no choice of masks
    mask: str
    #: the finding of the worst member; None: the model could not be tried
    finding: Finding | None = None
    #: the error, if the model could not be tried
    error: str = ""
    seconds: float = 0.0
    #: the proof holds for packs of at most so many tokens; None: for all packs
    longest: int | None = None

    @property
    def is_exact(self) -> bool:
        """Whether packs train as their samples alone."""
        return self.finding is not None and not self.finding.mixes

    def __str__(self) -> str:
        limit = f", packs of {self.longest:,} tokens at most" if self.longest else ""
        mask = f", mask={self.mask}" if self.mask else ""
        tried = f"{self.model} ({self.attention}{mask}{limit})"
        return f"{tried}: {self.finding}" if self.finding else f"{tried} could not be tried: {self.error}"


def prove(
    make: Any,
    config: Any,
    samples: Samples,
    mask: str = "auto",
    attention: str | None = None,
    longest: int | None = None,
    device: torch.device | str = "cpu",
    kinds: frozenset[str] | None = None,
) -> list[Proof]:
    """Compare packs of a few members with each member alone, in a small model of a class; an exact proof is the last.

    The first try is for packs of any length. If it fails, the second is for packs of `longest` tokens: it leaves out
    effects that begin beyond them (a scale, a block of keys, other angles of RoPE).

    Args:
        make: the class.
        config: the config of the class, of any size; it is not changed.
        samples: at least two members, with each kind of media that packs have; or trees of them.
        mask: `positions`, `dict4d`, `prefix4d`, `hybrid`, `indexed`, or `auto`: the first that is exact. Trees have no
            choice of masks.
        attention: attention implementation; None: the class's own choice.
        longest: tokens of the longest pack; None: not known.
        device: where its kernels run.
        kinds: kinds of parts that the small model must have: see `kinds_of`. None: all kinds of the full-size model.

    Returns:
        A proof for each mask that was tried.
    """

    @cache
    def small(longest: int | None) -> Any:
        needed = _kinds(make, config, attention) if kinds is None else kinds
        model = small_model(make, config, attention, longest, samples_of(samples), device)
        if lost := sorted(needed - kinds_of(model)):
            raise ValueError(f"a small copy of it has no {lost[0]}")
        return model

    proofs: list[Proof] = []
    for name in masks_for(make, config, samples) if mask == "auto" else (mask,):
        proofs.append(_attempt(Proof(make.__name__, attention or "default", name), small, samples, longest))
        if proofs[-1].is_exact:
            break
    return proofs


def _attempt(proof: Proof, small: Callable[[int | None], Any], samples: Samples, longest: int | None) -> Proof:
    start = time.perf_counter()
    try:
        with full_precision():
            model = small(None)
            proof = replace(proof, finding=try_class(model, samples, proof.mask))
            if longest and not proof.is_exact and (other := small(longest)).config != model.config:
                proof = replace(proof, finding=try_class(other, samples, proof.mask), longest=longest)
    except Exception as error:  # foreign code, with inputs it may not be made for
        proof = replace(proof, error=one_line(error, 300))
    return replace(proof, seconds=round(time.perf_counter() - start, 2))


def masks_for(make: Any, config: Any, samples: Samples) -> Sequence[str]:
    if isinstance(samples, ProbeTree):
        return ("",)
    return ("prefix4d",) if reads_prefix_whole(make, config) else _MASKS


def _kinds(make: Any, config: Any, attention: str | None) -> frozenset[str]:
    """Return the kinds of parts of the full-size model, built without weights; empty if that is impossible."""
    if not hasattr(make, "_from_config"):
        return frozenset()
    is_named = attention and attention not in KINDS  # those of this package are of the text part alone
    chosen = {"attn_implementation": attention} if is_named else {}  # some models have a layer class for each
    with torch.device("meta"):
        return kinds_of(make._from_config(copy.deepcopy(config), **chosen))


def kept_proofs(
    model: Any,
    samples: Samples,
    mask: str,
    attention: str | None,
    longest: int | None,
    device: torch.device | str = "cpu",
) -> list[Proof]:
    """Return `prove`'s result, from the user's cache if code, config, versions, media and positions are the same.

    A model that could not run is tried again each time, because memory may have been short.

    Args:
        model: a model of transformers.
        samples: as in `prove`.
    """
    make, config = class_of(model), model.config
    key = _key(model, samples, mask, attention, longest, device)
    if kept := read_kept("proofs", key, _parsed):
        return kept
    proofs = prove(make, config, samples, mask, attention, longest, device, kinds_of(model))
    if proofs[-1].finding is not None:
        keep("proofs", key, [asdict(proof) for proof in proofs])
    return proofs


def _parsed(values: Any) -> list[Proof]:
    proofs = [Proof(**{**value, "finding": value["finding"] and Finding(**value["finding"])}) for value in values]
    if not proofs:
        raise ValueError("it holds nothing")
    return proofs


def _key(
    model: Any,
    samples: Samples,
    mask: str,
    attention: str | None,
    longest: int | None,
    device: torch.device | str,
) -> str:
    """Hash everything that the proof depends on."""
    members = samples_of(samples)
    media = [sorted((name, value.shape[1:]) for name, value in member.media.items()) for member in members]
    content = [
        _VERSION,
        f"{class_of(model).__module__}.{class_of(model).__qualname__}",
        sys.version,
        [sorted(kinds_of(model)), code_of(model)],
        model.config.to_dict(),
        {name: version_of(name) for name in _PACKAGES},
        [[member.tokens.ids.tolist(), member.tokens.types.tolist()] for member in members],
        [None if member.tokens.rope is None else member.tokens.rope.tolist() for member in members],
        [isinstance(samples, ProbeTree), [(one.tokens.shared_len, one.tokens.factor) for one in members]],
        [mask, attention, longest, str(device), media],
        [getattr(part, "_attn_implementation", None) for part in parts(model.config)],
    ]
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()
