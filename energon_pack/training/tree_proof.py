"""Prove that a model class trains on trees as on their samples alone, with one attention implementation.

guard(model, encoder) ─prove_trees─► a small model ─compare─► TreeProof, kept for the next start
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from energon_pack.run.user_cache import keep, read_kept
from energon_pack.training.probe_tree import ProbeTree, TreeFinding, compare
from energon_pack.training.proof import full_precision, key_of
from energon_pack.training.small_model import small_model
from energon_pack.training.tree_attention import TREE
from energon_pack.training.wrapped import class_of

#: raised when the same input would give another proof
_VERSION = 1
#: what is tried where another attention implementation fails; None: the class's own choice
_ATTENTIONS = (TREE, "sdpa", "eager")


@dataclass(frozen=True)
class TreeProof:
    """The result for a model class with one attention implementation."""

    model: str
    attention: str
    #: None: it could not be tried
    finding: TreeFinding | None
    #: why not: what was raised
    error: str = ""
    seconds: float = 0.0
    #: it holds for packs of so many tokens at most; None: for any
    longest: int | None = None

    @property
    def is_exact(self) -> bool:
        """Whether each sample of a tree has the loss and the gradients that it has alone."""
        return self.finding is not None and not self.finding.mixes

    def __str__(self) -> str:
        limit = f", packs of {self.longest:,} tokens at most" if self.longest else ""
        tried = f"{self.model} ({self.attention}{limit})"
        return f"{tried}: {self.finding}" if self.finding else f"{tried} could not be tried: {self.error}"


def prove_trees(
    make: Any,
    config: Any,
    tree: ProbeTree,
    attention: str | None = None,
    longest: int | None = None,
    device: torch.device | str = "cpu",
) -> TreeProof:
    """Train a small model of a class on a tree, and on its samples alone.

    As in `prove`, the second try is for packs of `longest` tokens.

    Args:
        make: the class.
        config: its config, of any size; it stays as it is.
        tree: with each kind of media that packs have.
        attention: attention implementation; None: the class's own choice.
        longest: tokens of the longest pack; None: not known.
        device: where its kernels run.
    """
    start = time.perf_counter()
    proof = TreeProof(make.__name__, attention or "default", None)
    try:
        with full_precision():
            model = small_model(make, config, attention, None, tree.samples, device)
            proof = replace(proof, finding=compare(model, tree))
            if longest and not proof.is_exact:
                other = small_model(make, config, attention, longest, tree.samples, device)
                if other.config != model.config:
                    proof = replace(proof, finding=compare(other, tree), longest=longest)
    except Exception as error:  # foreign code, with inputs it may not be made for
        proof = replace(proof, error=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
    return replace(proof, seconds=round(time.perf_counter() - start, 2))


def kept_tree_proof(
    model: Any, tree: ProbeTree, attention: str | None, longest: int | None, device: torch.device | str = "cpu"
) -> TreeProof:
    """Return `prove_trees`'s result, from the user's cache if code, config, versions and the tree are the same.

    Args:
        model: a model of transformers.
    """
    shares = [(one.tokens.shared_len, one.tokens.factor) for one in tree.samples]
    key = key_of(model, tree.samples, f"trees {_VERSION} {shares}", attention, longest, device)
    if kept := read_kept("proofs", key, _parsed):
        return kept
    proof = prove_trees(class_of(model), model.config, tree, attention, longest, device)
    if proof.finding is not None:
        keep("proofs", key, asdict(proof))
    return proof


def _parsed(value: Any) -> TreeProof:
    return TreeProof(**{**value, "finding": TreeFinding(**value["finding"])})


def way_out_of_trees(
    make: Any,
    config: Any,
    tree: ProbeTree,
    attention: str | None,
    longest: int | None,
    others: Sequence[str] = _ATTENTIONS,
) -> str:
    """Say which attention implementation trains on trees as on samples alone; it is tried before it is named."""
    for name in others:
        if name == attention:
            continue
        proof = prove_trees(make, config, tree, name, longest)
        if proof.is_exact:
            what = "use_tree_attention(model)" if name == TREE else f"attn_implementation={name!r}"
            return f"{what} does ({proof.finding})"
    return "nothing tried here does: pack with packing.share=none"
