"""Prove that a model class trains on trees as on their samples alone, with one attention implementation.

guard(model, encoder) ─prove_trees─► a small model ─compare─► Proof, kept for the next start
"""

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from energon_pack.run.user_cache import keep, read_kept
from energon_pack.training.probe_tree import ProbeTree, TreeFinding, compare
from energon_pack.training.proof import Proof, attempt, key_of
from energon_pack.training.small_model import small_model
from energon_pack.training.tree_attention import TREE
from energon_pack.training.wrapped import class_of

#: raise it when the same input would give another proof
_VERSION = 2
#: attention implementations to try if another one fails
_ATTENTIONS = (TREE, "sdpa", "eager")


def prove_trees(
    make: Any,
    config: Any,
    tree: ProbeTree,
    attention: str | None = None,
    longest: int | None = None,
    device: torch.device | str = "cpu",
) -> Proof[TreeFinding]:
    """Train a small model of a class on a tree, and on its samples alone.

    Args:
        make: the class.
        config: the config of the class, of any size; it is not changed.
        tree: a tree with each kind of media that packs have.
        attention: attention implementation; None: the class's own choice.
        longest: tokens of the longest pack, for the second try of `attempt`; None: not known.
        device: where its kernels run.
    """

    def small(longest: int | None) -> Any:
        return small_model(make, config, attention, longest, tree.samples, device)

    return attempt(Proof(make.__name__, attention or "default", ""), small, partial(compare, tree=tree), longest)


def kept_tree_proof(
    model: Any, tree: ProbeTree, attention: str | None, longest: int | None, device: torch.device | str = "cpu"
) -> Proof[TreeFinding]:
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


def _parsed(value: Any) -> Proof[TreeFinding]:
    return Proof[TreeFinding](**{**value, "finding": TreeFinding(**value["finding"])})


def way_out_of_trees(
    make: Any,
    config: Any,
    tree: ProbeTree,
    attention: str | None,
    longest: int | None,
    others: Sequence[str] = _ATTENTIONS,
) -> str:
    """Name an attention implementation that trains on trees as on samples alone, after trying it."""
    for name in others:
        if name == attention:
            continue
        proof = prove_trees(make, config, tree, name, longest)
        if proof.is_exact:
            what = "use_tree_attention(model)" if name == TREE else f"attn_implementation={name!r}"
            return f"{what} does ({proof.finding})"
    return "nothing tried here does: pack with packing.share=none"
