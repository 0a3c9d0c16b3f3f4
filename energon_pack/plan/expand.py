"""Make several samples of each conversation (`labels.expand`): one for each answer, or for each question and answer."""

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from energon_pack.lengths.measure import dropping_wrong_lengths, method_key
from energon_pack.lengths.method import Method
from energon_pack.lengths.table_cache import key_of
from energon_pack.lengths.worker import LengthsRow, leave_out
from energon_pack.plan.items import Lengths
from energon_pack.plan.sample_parts import PartsRecipe, WholeSample, make_parts
from energon_pack.run.plain_data import plain
from energon_pack.run.scratch_arrays import blocks
from energon_pack.run.workshop import Workshop
from energon_pack.samples.answers import with_empty_answers_untrained
from energon_pack.samples.conversation import ReadSample
from energon_pack.samples.cut import EXPANDED_CUT_TYPE, Cut, parts_by_answer, parts_by_pair
from energon_pack.samples.documents import is_document
from energon_pack.samples.flavors.fit import contents_that_do_not_fit
from energon_pack.samples.frame_lists import settings_mark_frame_lists
from energon_pack.samples.skip import Skip
from energon_pack.templates.settings import Empty, Expand, LabelsConfig, TrainOn

#: Raise this number when the same conversation becomes other samples.
_VERSION = 2


def expand_conversations(lengths: Lengths, labels: LabelsConfig, method: Method, workshop: Workshop) -> Lengths:
    """Replace each conversation by the samples that `labels.expand` makes of it, and return the new lengths.

    Raises:
        SourceChanged: a file is not what was measured.
    """
    if labels.expand is Expand.none:
        return lengths
    may_have_parts = lengths.scratch.zeros(lengths.num_samples, np.bool_)
    for block in blocks(lengths.num_samples):
        may_have_parts[block] = lengths.items.lens[block] > 0
    asked = {name: value for name, value in plain(labels).items() if name in ("expand", "window_images", "window_text")}
    recipe = PartsRecipe(
        "expand",
        key_of(asked, _VERSION, method_key(method)),
        partial(_samples_of, labels=labels),
        EXPANDED_CUT_TYPE,
        lambda table: pc.is_null(table["reason"]).to_numpy(),
        ("reason",),
    )
    with dropping_wrong_lengths(lengths.shards, method, workshop):
        expanded = make_parts(lengths, may_have_parts, recipe, method, workshop)
    expanded.noted.samples["reasoning_left_out"] = 0  # each thought is trained where its answer is the last
    return expanded


class ExpansionCounts(NamedTuple):
    """How many conversations `labels.expand` turned into how many samples, and how many tokens that costs."""

    how: str  # `turns` or `pairs`
    conversations: int  # conversations that became several samples
    samples: int  # the number of these samples
    whole_tokens: int  # of all samples, if all conversations stayed whole
    tokens: int  # of all samples


def count_expansion(lengths: Lengths, labels: LabelsConfig) -> ExpansionCounts | None:
    """Count conversations, samples and tokens in what `expand_conversations` returned; None: `labels.expand=none`."""
    if labels.expand is Expand.none:
        return None
    num, whole, tokens = lengths.num_samples, 0, 0
    for block in blocks(len(lengths.items)):
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
        return parts_by_pair(sample.messages, sample.kinds)
    window = None if settings_mark_frame_lists(sample.fields.get("media_settings")) else labels.window_images
    only_last, messages = labels.train_on is TrainOn.last, sample.messages
    if sample.options.labels.get("empty", labels.empty) == Empty.drop:
        messages = [*with_empty_answers_untrained(messages)]
    return parts_by_answer(messages, sample.kinds, only_last, window, labels.window_text)


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
        rows.append(replace(row, does_not_fit=contents_that_do_not_fit(part)))
    return whole.keep_trained_parts(rows)
