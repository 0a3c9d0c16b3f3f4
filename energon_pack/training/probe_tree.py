"""Make small trees of samples, with every way in which branches may differ, to try a model with them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from energon_pack.training.batch import PackedBatch
from energon_pack.training.encoded import Encoded
from energon_pack.training.inputs import has_rope_rows
from energon_pack.training.joining import join
from energon_pack.training.layout import IGNORE, Form
from energon_pack.training.made_probe import PAD_TAIL, add_media, made_probe
from energon_pack.training.probe import Placed, Probe

_WEIGHTS = "sample"  # each sample's own number of trained tokens counts


@dataclass(frozen=True)
class ProbeTree:
    """The samples of a few trees, depth first."""

    #: the whole members, each with all of its media; `shared_len` is the length of its shared beginning
    samples: list[Encoded]
    #: the media that each one adds
    added: list[Mapping[str, Tensor]]


#: packs of members, or trees of them
Samples = Sequence[Encoded] | ProbeTree


def samples_of(samples: Samples) -> Sequence[Encoded]:
    """Return the samples of packs or trees."""
    return samples.samples if isinstance(samples, ProbeTree) else samples


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


def tree_batch(model: Any, tree: ProbeTree, device: torch.device | None = None) -> Probe:
    """Lay the trees out in one row.

    Args:
        device: of the inputs; None: the model's own.
    """
    from energon_pack.training.trees import neat_trees, paths

    tokens = [sample.tokens for sample in tree.samples]
    width = sum(len(member) - member.shared_len for member in tokens) + PAD_TAIL
    batch = PackedBatch(neat_trees([tokens], Form(rope=has_rope_rows(model), width=width, weights=_WEIGHTS)))
    add_media(batch, tree.samples, tree.added)
    places = paths([len(member) for member in tokens], [member.shared_len for member in tokens])
    placed = [Placed(*pair) for pair in zip(tree.samples, repeat(0), places)]
    return made_probe(model, batch, placed, device, _WEIGHTS)
