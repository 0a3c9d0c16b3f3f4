"""The second stage: decide which samples go into which pack, and which packs into which shard."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energon_pack.config.naming import shards_identity
from energon_pack.config.stage_settings import PlanSettings
from energon_pack.lengths.measure import MeasuredShard, dropping_wrong_lengths
from energon_pack.lengths.method import Method
from energon_pack.lengths.same_media import refuse_changed_media
from energon_pack.plan.epoch_draws import EntryShare, apply_epochs_and_mixture
from energon_pack.plan.expand import count_expansion, fitting_pairs
from energon_pack.plan.items import Lengths
from energon_pack.plan.overlong import cut_overlong, refuse_overlong
from energon_pack.plan.packs import PackPlan, ShardPlan, plan_shards
from energon_pack.plan.plan import check_media_fit_sample_type, find_shared_beginnings, plan_packs, refuse_empty_splits
from energon_pack.plan.report import Report, summarize_plan
from energon_pack.plan.settings import CUTTING_POLICIES, Overlong
from energon_pack.run.workshop import Workshop
from energon_pack.stages.measuring import Measured
from energon_pack.steps.cost import CostModel, cost_model_or_default
from energon_pack.templates.processor import processor_folder_of
from energon_pack.templates.settings import Expand


@dataclass(frozen=True)
class Planned:
    """A plan (which samples go into which pack and shard), with what it was made from."""

    lengths: Lengths
    method: Method
    plan: PackPlan
    cost_model: CostModel  # the model of a sample's cost
    shards: ShardPlan
    #: the settings that the bytes of the shards depend on, with the rules that count media
    content: dict[str, dict[str, Any]]
    identity: str  # a hash of everything that the bytes of the shards depend on
    report: Report


def plan_source(measured: Measured, settings: PlanSettings, workshop: Workshop) -> Planned:
    """Plan the packs and shards of measured samples; the same samples and settings always give the same plan."""
    lengths, method, packing, labels = measured.lengths, measured.method, settings.packing, settings.labels
    content = {
        **settings.content,
        "model": {**settings.content["model"], "template": method.media_rules_choice.template},
    }
    if "final_end" in method.identity.labels:  # a record without it says that no token is added
        content["labels"] = {**content["labels"], "final_end": method.identity.labels["final_end"]}
    cost = cost_model_or_default(processor_folder_of(method.template_folder))
    with workshop.timed("plan"):
        expansion = None if labels.expand is Expand.none else count_expansion(lengths, labels)
        if packing.overlong in CUTTING_POLICIES:
            with dropping_wrong_lengths(lengths.shards, method, workshop):
                lengths = cut_overlong(lengths, method, packing, labels, workshop)
        entry_shares = list[EntryShare]()
        if measured.mixture or packing.epochs > 1:
            fits = fitting_pairs(lengths, packing) if lengths.has_pairs else None
            lengths, entry_shares = apply_epochs_and_mixture(lengths, measured.mixture, packing, settings.seed, fits)
        num_repeated = measured.num_repeated + lengths.num_samples - measured.lengths.num_samples
        lengths, trees = find_shared_beginnings(lengths, packing)
        plan = plan_packs(lengths.items, packing, settings.seed, cost, lengths.scratch, trees)
        if packing.overlong == Overlong.error:
            refuse_overlong(lengths, plan, packing)
        check_media_fit_sample_type(lengths, plan)
        refuse_empty_splits(lengths, plan, settings.shares)
        workshop.progress.add(len(lengths.items))
        numbers = measured.num_found, num_repeated
        report = summarize_plan(lengths, plan, packing, cost, *numbers, expansion, entry_shares)
        # earlier versions trained empty answers, in shards of the same lengths
        empty = ["empty answers are not trained"] * (lengths.noted.samples["empty_answers"] > 0)
        hashed = (settings.seed, None, method.identity.fingerprint, *_entry_settings(lengths), *empty)
        shards = plan_shards(lengths, plan, settings.max_shard_packs, settings.max_shard_bytes, hashed)
        identity = shards_identity(content, shards.key_prefix, [_shard_state(item) for item in lengths.shards])
    return Planned(lengths, method, plan, cost, shards, content, identity, report)


def check_media_files_unchanged(planned: Planned, workshop: Workshop) -> None:
    """Check again the media that lie outside the shards, in their own files, by `refuse_changed_media`."""
    measured = planned.lengths.shards
    refuse_changed_media([item.shard for item in measured], [item.pieces for item in measured], workshop)


def _entry_settings(lengths: Lengths) -> list[Any]:
    """Return the settings that entries of a mixture have of their own, by shard; [] if there are none."""
    identities = [(item.shard.name, item.shard.own.identity) for item in lengths.shards if item.shard.own.identity]
    return [identities] if identities else []


def _shard_state(item: MeasuredShard) -> tuple[str, int, str, str]:
    """Return values that change with a source shard, or with its files of lengths if its media lie outside of it."""
    files = json.dumps([Path(piece.path).name for piece in item.pieces]) if item.shard.media_root else ""
    files += ", videos decoded" * item.shard.decodes_videos
    return item.shard.path, item.shard.size, item.shard.version, files
