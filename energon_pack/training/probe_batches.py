"""Make batches of samples to try a model with, and the inputs of each sample alone."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from energon_pack.training.batch import PackedBatch
from energon_pack.training.encoded import USE_AUDIO_IN_VIDEO, Encoded, has_audio_in_video
from energon_pack.training.forward_inputs import takes_rope_rows
from energon_pack.training.joining import join
from energon_pack.training.layout import IGNORE, RowForm, lay_out_neat_rows
from energon_pack.training.masks import has_bidirectional_prefix, mask_from_first_trained_token
from energon_pack.training.trial_inputs import (
    TYPE_INPUTS,
    PlacedSample,
    Probe,
    differentiable_copies,
    is_pixels_or_sound,
)

#: tokens behind the last member
PAD_TAIL_LEN = 3


def reverse_with_other_media(members: Sequence[Encoded]) -> list[Encoded]:
    """Return the members in reverse order with other media, so that a mean over a batch's media can't hide a leak."""
    return [replace(member, media=_other_media(member)) if member.media else member for member in reversed(members)]


def _other_media(member: Encoded) -> dict[str, Tensor]:
    return {
        name: value.flip(0) + 0.5 if value.is_floating_point() and is_pixels_or_sound(name) else value
        for name, value in member.media.items()
    }


def put_twins_in_rows(members: Sequence[Encoded], mask: str) -> list[list[Encoded]]:
    """Put members in one row and their twins in a second; if the mask is `hybrid`, all in one row."""
    return (
        [[*members, *reverse_with_other_media(members)]]
        if mask == "hybrid"
        else [[*members], reverse_with_other_media(members)]
    )


def probe_of_rows(model: Any, rows: Sequence[Sequence[Encoded]], mask: str) -> Probe:
    """Lay samples out in rows and a pad tail, as one batch to try a model with; `mask`: a value of `model.mask`.

    The loss covers the last sample, the third last, and so on; not the first, nor any without trained tokens.
    """
    width = PAD_TAIL_LEN + max(sum(len(member.tokens) for member in row) for row in rows)
    form = RowForm(width=width, rope=takes_rope_rows(model))
    batch = PackedBatch(lay_out_neat_rows([[one.tokens for one in row] for row in rows], form))
    placed = [replace(one, leaves=differentiable_copies(one.sample.media)) for one in _placed_samples(rows)]
    add_media(batch, [one.sample for one in placed], ({**one.sample.media, **one.leaves} for one in placed))
    batch.mask = mask
    if mask == "indexed":
        batch["attention_mask"] = batch["doc_ids"]
    for i, one in enumerate(placed):
        has_loss = i > 0 and (len(placed) - i) % 2 == 1 and bool((one.sample.tokens.labels != IGNORE).any())
        placed[i] = replace(one, in_loss=has_loss)
    return _probe_from_batch(model, batch, placed)


def _probe_from_batch(model: Any, batch: PackedBatch, placed: Sequence[PlacedSample], weights: str = "token") -> Probe:
    """Return a probe of a batch of packs; its samples alone get a processor's inputs. `weights`: its `loss_weight`."""
    inputs = batch.to(model.device).model_inputs(model, labels=False)
    plain = partial(plain_inputs, model, config=model.config, device=model.device)
    return Probe(batch, placed, inputs, plain, weights)


def add_media(batch: PackedBatch, samples: Sequence[Encoded], media: Iterable[Mapping[str, Tensor]]) -> None:
    """Put media into a batch in place: `media` has the inputs of each sample, joined by the rules of `samples`."""
    batch |= join(media, {name: rule for one in samples for name, rule in one.joins.items()})
    batch["media_keys"] = sorted({name for one in samples for name in (*one.media, *one.tokens.rows)})


def _placed_samples(rows: Sequence[Sequence[Encoded]]) -> list[PlacedSample]:
    placed = []
    for number, row in enumerate(rows):
        start = 0
        for sample in row:
            placed.append(PlacedSample(sample, number, torch.arange(start, start := start + len(sample.tokens))))
    return placed


def plain_logits(model: Any, member: Encoded) -> Tensor:
    """Return the logits [L, vocabulary] of a sample alone, with the inputs that a processor gives."""
    with torch.no_grad():
        logits: Tensor = model(**plain_inputs(model, member, model.config, model.device)).logits[0]
    return logits


def plain_inputs(owner: Any, sample: Encoded, config: Any, device: torch.device) -> dict[str, Any]:
    """Return the inputs of a sample alone, batch size 1, as a processor gives them: no positions, a mask of ones.

    `owner` has the `forward` that is given them: a model, a part of one, or a class.
    """
    tokens = sample.tokens
    ids, types, labels = (one[None].to(device) for one in (tokens.ids, tokens.types, tokens.labels))
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    accepted = inspect.signature(owner.forward).parameters
    # without media no processor gives token_type_ids; GPT-2 would add embeddings for them
    kinds = TYPE_INPUTS if bool(types.any()) else TYPE_INPUTS[:1]
    inputs |= {name: types for name in kinds if name in accepted}
    if USE_AUDIO_IN_VIDEO in accepted and has_audio_in_video(tokens.types):
        inputs[USE_AUDIO_IN_VIDEO] = True
    if has_bidirectional_prefix(owner, config):
        inputs["token_type_ids"] = mask_from_first_trained_token(inputs["attention_mask"], labels).long()
    inputs |= {name: value.to(device) for name, value in sample.media.items()}
    if sample.media:
        inputs |= {name: row[None].to(device) for name, row in tokens.rows.items()}
    return {**inputs, "use_cache": False}


_LOSS_WEIGHT = "sample"  # each sample's own number of trained tokens counts


@dataclass(frozen=True)
class ProbeTree:
    """Samples that share beginnings as a few trees, in depth-first order."""

    #: the whole members, each with all of its media; `shared_len` is the length of its shared beginning
    samples: list[Encoded]
    #: the media that each one adds
    added_media: list[Mapping[str, Tensor]]


#: packs of members, or trees of them
ProbeSamples = Sequence[Encoded] | ProbeTree


def samples_of(samples: ProbeSamples) -> Sequence[Encoded]:
    """Return the samples themselves, or those of a `ProbeTree`, as a sequence."""
    return samples.samples if isinstance(samples, ProbeTree) else samples


def make_probe_tree(members: Sequence[Encoded], concatenate: Callable[[Sequence[Encoded]], Encoded]) -> ProbeTree:
    """Make samples that share beginnings: a fork in a branch, a fork before an answer, media before and after forks.

    Two samples are equal, one is the beginning of others, and their weights differ. `concatenate` concatenates samples.
    """
    texts = [member for member in members if not member.media]
    first, *later = [member for member in members if member.media] or texts[:1]
    short, text = texts[0], texts[-1]
    answer = max(1, int((text.tokens.labels != IGNORE).nonzero()[0])) - 1  # the last token before the answer
    asked = [_with_token_range(text, 0, answer)] if answer else []
    answered, other = _with_token_range(text, answer), _with_reversed_tokens(_with_token_range(text, answer))
    listed: list[tuple[list[Encoded], float]] = [
        ([first], 1.0),
        ([first, *asked, answered], 0.5),
        ([first, *asked, other], 1.0),
        ([first, short], 1.0),
        ([first, short, (later or [first])[0]], 2.0),
        ([first, short, *asked, other], 3.0),
        ([first, short, *asked, other], 1.0),
    ]
    for one in later:
        listed += [([one, *asked, answered], 1.0), ([one, *asked, other], 1.0)]
    before: list[Encoded] = []
    samples: list[Encoded] = []
    added: list[Mapping[str, Tensor]] = []
    for parts, factor in listed:
        num = next(
            (i for i, (a, b) in enumerate(zip(before, parts, strict=False)) if a is not b), min(len(before), len(parts))
        )
        whole = concatenate(parts)
        shared = sum(len(part.tokens) for part in parts[:num])
        samples.append(replace(whole, tokens=replace(whole.tokens, factor=factor, shared_len=shared)))
        added.append(join([part.media for part in parts[num:]], whole.joins))
        before = parts
    return ProbeTree(samples, added)


def _with_token_range(member: Encoded, start: int, end: int | None = None) -> Encoded:
    tokens, cut = member.tokens, slice(start, end)
    return replace(
        member, tokens=replace(tokens, ids=tokens.ids[cut], labels=tokens.labels[cut], types=tokens.types[cut])
    )


def _with_reversed_tokens(member: Encoded) -> Encoded:
    tokens = member.tokens
    ids, labels = (torch.cat([row[:1], row[1:].flip(0)]) for row in (tokens.ids, tokens.labels))
    return replace(member, tokens=replace(tokens, ids=ids, labels=labels))


def probe_of_tree(model: Any, tree: ProbeTree) -> Probe:
    """Lay the samples of trees out in one row, shared tokens once, as a batch to try a model with."""
    from energon_pack.training.tree_rows import lay_out_neat_trees, token_places

    tokens = [sample.tokens for sample in tree.samples]
    width = sum(len(member) - member.shared_len for member in tokens) + PAD_TAIL_LEN
    batch = PackedBatch(
        lay_out_neat_trees([tokens], RowForm(rope=takes_rope_rows(model), width=width, weights=_LOSS_WEIGHT))
    )
    add_media(batch, tree.samples, tree.added_media)
    places = token_places([len(member) for member in tokens], [member.shared_len for member in tokens])
    placed = [PlacedSample(*pair) for pair in zip(tree.samples, repeat(0), places)]
    return _probe_from_batch(model, batch, placed, _LOSS_WEIGHT)
