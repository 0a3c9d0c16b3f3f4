"""Make several items of a conversation: one for each answer (`labels.expand`), or both sides of a preference pair.

A pair takes two steps:

    Lengths of the chosen sides ──measure_sides──► Lengths with two parts for each sample, `chosen` and `rejected`
                                ──pair_trees──► a tree for each pair, which a plan packs as one item
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from energon_pack.lengths.measure import dropping_wrong_lengths, method_key
from energon_pack.lengths.method import Method
from energon_pack.lengths.table_cache import key_of
from energon_pack.lengths.worker import LengthsRow, leave_out
from energon_pack.plan.items import Lengths
from energon_pack.plan.sample_parts import PartsRecipe, WholeSample, make_parts
from energon_pack.plan.settings import CAPS, PackingConfig, SharedBeginnings, costs_and_limits
from energon_pack.plan.trees import COUNTS, PrefixTrees, find_prefix_trees, subtract_shared_counts
from energon_pack.run.bounded_memory import split_into_blocks
from energon_pack.run.untrusted_input import plain
from energon_pack.run.workshop import Workshop
from energon_pack.samples.conversation import ReadSample
from energon_pack.samples.cut import EXPANDED_CUT_TYPE, Cut, cut_by_answer, cut_by_question
from energon_pack.samples.documents import is_document
from energon_pack.samples.flavors.fit import contents_forbidden_by_flavor_rules
from energon_pack.samples.frames import settings_mark_frame_lists
from energon_pack.samples.pairs import cuts_of_pair
from energon_pack.samples.settings import ControlTokens
from energon_pack.samples.skip import Reason, Skip
from energon_pack.samples.turns import with_empty_answers_untrained
from energon_pack.templates.settings import EmptyAnswerPolicy, Expand, LabelsConfig, TrainOn

#: Raise this number when the same conversation becomes other samples.
_EXPAND_VERSION = 2


def expand_conversations(lengths: Lengths, labels: LabelsConfig, method: Method, workshop: Workshop) -> Lengths:
    """Replace each conversation by the samples that `labels.expand` makes of it, and return the new lengths.

    Raises:
        SourceChanged: a file is not what was measured.
    """
    may_have_parts = lengths.scratch.zeros(lengths.num_samples, np.bool_)
    for block in split_into_blocks(lengths.num_samples):
        may_have_parts[block] = lengths.items.lens[block] > 0
    asked = {name: value for name, value in plain(labels).items() if name in ("expand", "window_images", "window_text")}
    key = key_of(asked, _EXPAND_VERSION, method_key(method))
    recipe = _recipe("expand", key, partial(_samples_of, labels=labels))
    with dropping_wrong_lengths(lengths.shards, method, workshop):
        expanded = make_parts(lengths, may_have_parts, recipe, method, workshop)
    expanded.noted.samples["reasoning_left_out"] = 0  # each thought is trained where its answer is the last
    return expanded


def _recipe(stage: str, key: str, make: Callable[[WholeSample], list[LengthsRow]]) -> PartsRecipe:
    """Return the recipe by which `make` makes parts of each sample that was measured."""
    return PartsRecipe(
        stage, key, make, EXPANDED_CUT_TYPE, lambda table: pc.is_null(table["reason"]).to_numpy(), ("reason",)
    )


class ExpansionCounts(NamedTuple):
    """How many conversations `labels.expand` turned into how many samples, and how many tokens that costs."""

    how: str  # `turns` or `pairs`
    conversations: int  # conversations that became several samples
    samples: int  # the number of these samples
    whole_tokens: int  # of all samples, if all conversations stayed whole
    tokens: int  # of all samples


def count_expansion(lengths: Lengths, labels: LabelsConfig) -> ExpansionCounts:
    """Count conversations, samples and tokens in what `expand_conversations` returned."""
    num, whole, tokens = lengths.num_samples, 0, 0
    for block in split_into_blocks(len(lengths.items)):
        lens = lengths.items.lens[block].astype(np.int64)
        here = max(0, min(block.stop, num) - block.start)  # parts come after the samples
        tokens += int(lens.sum())
        whole += int(np.where(lengths.is_cut[block], lengths.sample_lens[block], lens[:here]).sum())
    conversations = int(np.count_nonzero(lengths.is_cut))
    return ExpansionCounts(labels.expand.value, conversations, len(lengths.items) - num, whole, tokens)


def _samples_of(whole: WholeSample, labels: LabelsConfig) -> list[LengthsRow]:
    """Return the samples made of a conversation; one row with the reason where it can't be expanded."""
    cuts = expansion_cuts(whole.sample, labels)
    return _measure_cuts(whole, cuts, labels.expand) if cuts else []


def expansion_cuts(sample: ReadSample, labels: LabelsConfig) -> list[Cut]:
    """List the pieces of a conversation that become samples of their own by `labels.expand`; empty: it stays whole."""
    if labels.expand is Expand.none or is_document(sample.messages):
        return []
    if labels.expand is Expand.pairs:
        return cut_by_question(sample.messages, sample.kinds)
    window = None if settings_mark_frame_lists(sample.fields.get("media_settings")) else labels.window_images
    only_last, messages = labels.train_on is TrainOn.last, sample.messages
    if sample.options.labels.get("empty", labels.empty) == EmptyAnswerPolicy.drop:
        messages = [*with_empty_answers_untrained(messages)]
    return cut_by_answer(messages, sample.kinds, only_last, window, labels.window_text)


def _measure_cuts(whole: WholeSample, cuts: list[Cut], how: Expand) -> list[LengthsRow]:
    parts = []
    for cut in cuts:
        try:
            parts.append(whole.rendered(cut))
        except Skip as skip:
            row = replace(whole.row, media_type=None)
            leave_out(row, Skip(skip.reason, f"labels.expand={how.value}, {cut.part}: {skip.detail}"))
            return [row]
    counts = whole.template.count([rendered for _, rendered in parts], whole.engine)
    rows = []
    for cut, (part, rendered), of_tokens in zip(cuts, parts, counts, strict=True):
        row = whole.row_of_part(cut, part, rendered, *of_tokens)
        rows.append(replace(row, does_not_fit=contents_forbidden_by_flavor_rules(part)))
    return whole.keep_trained_parts(rows)


#: Raise this number when the same pair becomes other members.
_PAIRS_VERSION = 1
_NO_LIMIT = 1 << 40


def measure_sides(lengths: Lengths, method: Method, workshop: Workshop) -> Lengths:
    """Replace each sample by the two sides of its pair, and return the new lengths.

    Raises:
        SourceChanged: a file is not what was measured.
    """
    key = key_of("pairs", _PAIRS_VERSION, method_key(method))
    recipe = _recipe("pairs", key, partial(_sides, control_tokens=method.read.control_tokens))
    with dropping_wrong_lengths(lengths.shards, method, workshop):
        of_sides = make_parts(lengths, lengths.items.lens > 0, recipe, method, workshop)
    of_sides.has_pairs = True
    return of_sides


def _sides(whole: WholeSample, control_tokens: ControlTokens) -> list[LengthsRow]:
    """Return the rows of a pair's sides; one row with the reason if one of them can't be packed."""
    rows = []
    for cut in cuts_of_pair(whole.sample.messages, whole.sample.kinds):
        try:
            part, rendered = whole.rendered(cut)
            rendered.skip_if_left_out(control_tokens)
            [counts] = whole.template.count([rendered], whole.engine)
            if not counts[1]:
                raise Skip(Reason.NOTHING_TRAINED, "none of its tokens is trained")
        except Skip as skip:
            row = replace(whole.row, media_type=None)
            leave_out(row, Skip(skip.reason, f"its {cut.part} side: {skip.detail}"))
            return [row]
        rows.append(
            replace(
                whole.row_of_part(cut, part, rendered, *counts), does_not_fit=contents_forbidden_by_flavor_rules(part)
            )
        )
    return rows


def group_sides_into_trees(lengths: Lengths, packing: PackingConfig) -> PrefixTrees:
    """Group the sides of each pair into a tree, the chosen one first; with `packing.share` they share their beginning.

    A pair is a tree even where it shares nothing, or where both sides are too long for a pack.
    """
    num_items, num = len(lengths.items), lengths.num_samples
    sides = num + np.argsort(lengths.whole_of_part, kind="stable")
    chosen, rejected = sides[::2], sides[1::2]
    shared = {name: np.zeros(num_items, np.int32) for name in COUNTS}
    if packing.share is not SharedBeginnings.none and len(sides):
        assert lengths.items.conversation is not None  # parts have one
        without_caps: dict[str, Any] = {**dict.fromkeys(cap.name for cap in CAPS), "max_token_len": _NO_LIMIT}
        limitless = replace(packing, **without_caps)
        found = find_prefix_trees(lengths, limitless, lengths.items.conversation.astype(np.int64)).shared
        for name, values in shared.items():
            values[rejected] = found[name][chosen] + found[name][rejected]  # one of them is 0
    starts = np.concatenate((np.arange(0, len(sides), 2), len(sides) + np.arange(num + 1)))
    return PrefixTrees(np.concatenate((sides, np.arange(num))), starts, shared)


def fitting_pairs(lengths: Lengths, packing: PackingConfig) -> npt.NDArray[np.bool_]:
    """Return whether each sample is a pair that fits a pack, or a pack of its own: bool[num_samples]."""
    trees = group_sides_into_trees(lengths, packing)
    costs, limits = costs_and_limits(
        trees.as_items(subtract_shared_counts(lengths.items, trees.shared)).counts, packing
    )
    limits[0] = packing.sample_token_limit[1]
    fits, pairs = np.zeros(lengths.num_samples, np.bool_), np.unique(lengths.whole_of_part)
    fits[pairs] = (costs[:, : len(pairs)] <= limits[:, None]).all(axis=0)
    return fits
