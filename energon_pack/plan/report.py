"""Figures of report.json."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from energon_pack.errors import PackError
from energon_pack.plan.epoch_draws import EntryShare, mixture_figures
from energon_pack.plan.expand import ExpansionCounts
from energon_pack.plan.items import AnyInts, Items, Lengths
from energon_pack.plan.pack_lengths import PlanCounts, Tally, count_by_medium, count_plan, merge_sides_of_pairs
from energon_pack.plan.packs import (
    LEFT_OUT,
    PackPlan,
    count_packs_by_mixture_turn,
    count_packs_by_split,
    features_of_packs,
    flops_of_packs,
    media_type_of_packs,
    split_of_packs,
)
from energon_pack.plan.plan import count_packs_if_no_window
from energon_pack.plan.settings import PackingConfig
from energon_pack.plan.splits import SPLITS
from energon_pack.run.seeded_random import Ints, random_keys
from energon_pack.samples.media.kinds import IMAGE, MEDIA_TYPES, VIDEO
from energon_pack.samples.skip import Reason
from energon_pack.steps.cost import CostModel
from energon_pack.steps.evenness import evenness_figures
from energon_pack.steps.topology import Topology, reading_order

_UNKNOWN = "unknown"  # media type of samples that could not be read
#: what becomes of images with more than 8 bits a channel
LOST_BITS = "values above 255 become white, and fractions black, as in transformers"


@dataclass(frozen=True)
class MediaFigures:
    """Counts of the samples and packs of one media type; the type of a pack covers the media of all its members."""

    samples_in: int
    samples: int  # packed
    packs: int
    tokens: int
    fill: float


@dataclass(frozen=True)
class RunFacts:
    """Facts about a run (settings, times, memory, bytes), which report.json holds beside the figures of its data."""

    format: int  # of report.json
    identity: str  # hash of everything that the bytes of the shards depend on
    config: dict[str, Any]  # as it was composed
    media_rules: dict[str, Any]  # the rules that counted media, and what they were compared with: `Choice`
    cwd: str  # what relative paths of the config are relative to
    source_root: str | None  # where the media lie that packs refer to; None: packs contain them
    fingerprint: str  # the template's
    seconds: dict[str, float]  # by stage
    throughput: dict[str, dict[str, int]]  # by stage: samples, cached (the cache knew them), bytes read or written
    peak_rss_bytes: int  # resident memory of the run and its workers together
    peak_rss_bytes_by_stage: dict[str, int]
    bytes_read: int
    bytes_written: int
    cache: dict[str, int]  # shards_reused, shards_measured
    samples_verified: int  # by `measure.verify`
    samples_not_verified: int  # drawn for it, but their media can't be read by the full processor here
    files_decoded: list[str]  # source files whose videos were counted by decoding them, because packets are not frames


@dataclass(frozen=True)
class Report:
    """The content of report.json: counts of samples, packs and tokens of a plan.

    samples_in = samples_packed + samples_skipped; fill = tokens / (packs × max_token_len), longer packs being full.
    """

    samples_in: int  # samples that the source settings select, each as often as it is drawn
    samples_excluded: int  # left out by split, exclude, sample_ratio, a mixture or limit
    samples_repeated: int  # draws of samples that were drawn before
    samples_packed: int  # whole, or as their parts
    samples_skipped: int  # each is in skipped.jsonl
    samples_cut: int  # packed as their parts
    parts: int  # members of packs: whole samples, and parts of cut samples
    skipped_by_reason: dict[str, int]
    packs: int
    packs_lower_bound: int  # no plan has fewer
    packs_without_window: int | None  # see `count_packs_if_no_window`; if None, not in the file
    fill: float
    max_token_len: int
    tokens: int  # in packs
    tokens_left_out: int  # tokens of measured samples that are in no pack
    tokens_left_out_by_reason: dict[str, int]  # `cut_off`: of samples whose other tokens are packed
    num_supervised: int  # trained tokens in packs
    notes: dict[str, int]  # samples by note of `NOTES`; in the file each is `samples_with_<note>`
    unknown_keys: dict[str, dict[str, Any]]  # the most frequent unknown keys of records: samples, example
    image_modes: dict[str, dict[str, Any]]  # modes of images that lose bits: samples, example
    shared: dict[str, int] | None  # the savings of `packing.share`; None, and not in the file: none
    mixture: list[dict[str, Any]] | None  # one for each entry; None, and not in the file: there is no mixture
    weighted_share: float  # share of such tokens among the trained tokens of all measured samples
    by_media: dict[str, MediaFigures]
    by_split: dict[str, dict[str, int]]  # packs, samples, tokens
    turns: list[dict[str, int]] | None  # the same for each epoch of each phase; None, and not in the file: one turn
    members_per_pack: dict[str, int]  # this and the next two: min, p50, p90, p99, max
    token_len: dict[str, int]  # of measured samples, whether they were cut or not
    visual_tokens_per_pack: dict[str, int]
    attention_cost: dict[str, Any]  # Σ len² of a pack: mean, max, cv
    flops: dict[str, Any]  # forward, of all packs: weights and attention of the language model, vision encoder; source
    steps: dict[str, Any] | None  # None, and not in the file: a step has one pack
    expanded: dict[str, Any] | None = None  # `ExpansionCounts`; None, and not in the file: `labels.expand=none`
    placeholders_as_text: dict[str, dict[str, Any]] | None = None  # by kind of media; None, and not in the file: none
    pairs: int | None = None  # packed preference pairs; None, and not in the file: there are none
    removed: dict[str, int] | None = None  # `SampleNoteCounts.num_removed_pictures`; None, and not in the file: none
    samples_cut_off: int = 0  # packed samples whose parts lack some of their tokens; each is in skipped.jsonl
    run: RunFacts | None = None  # in the file these facts are beside the figures

    @property
    def lost_modalities(self) -> list[str]:
        """List the media types that are in the source, but in no pack."""
        return [
            name for name, media in self.by_media.items() if name != _UNKNOWN and media.samples_in and not media.samples
        ]

    def dropped_share(self, reason: str) -> float:
        """Return which share (0 to 1) of all tokens is in no pack for a reason, a value of `Reason`."""
        return self.tokens_left_out_by_reason.get(reason, 0) / max(1, self.tokens + self.tokens_left_out)

    def to_json(self) -> dict[str, Any]:
        """Return the content of report.json as a dict; fields that are None are left out."""
        figures = asdict(self)
        facts, notes = figures.pop("run") or {}, figures.pop("notes").items()
        figures |= {f"samples_with_{note}": number for note, number in notes}
        return {name: value for name, value in figures.items() if value is not None} | facts


def summarize_plan(
    lengths: Lengths,
    plan: PackPlan,
    packing: PackingConfig,
    cost: CostModel,
    num_source_samples: int,
    num_repeated: int = 0,
    expansion: ExpansionCounts | None = None,
    shares: Sequence[EntryShare] = (),
) -> Report:
    """Compute the figures of a plan for report.json.

    Args:
        num_source_samples: samples in the source, before settings exclude some.
        num_repeated: draws of samples that were drawn before.
        expansion: what `labels.expand` did; None: nothing.
        shares: of the entries of a mixture; empty: no mixture.

    Raises:
        PackError: samples_in is not packed + skipped. Never seen; nothing may be published then.
    """
    items, capacity, noted = lengths.items, packing.max_token_len, lengths.noted
    counted, lens, features = count_plan(lengths, plan), plan.sum_per_pack(items.lens), features_of_packs(items, plan)
    tokens, reasons, room = int(lens.sum()), _reasons(lengths, counted), np.maximum(lens, capacity)
    return Report(
        samples_in=lengths.num_samples,
        samples_excluded=num_source_samples + num_repeated - lengths.num_samples,
        samples_repeated=num_repeated,
        samples_packed=int(counted.packed.sum()),
        samples_skipped=reasons.total(),
        samples_cut=counted.num_cut,
        samples_cut_off=counted.num_cut_off,
        pairs=counted.num_cut if lengths.has_pairs else None,
        parts=len(plan.items),
        skipped_by_reason=dict(sorted(reasons.items())),
        packs=plan.num_packs,
        packs_lower_bound=plan.lower_bound,
        packs_without_window=count_packs_if_no_window(merge_sides_of_pairs(lengths), packing, lengths.seed),
        fill=_fill(tokens, room.sum()),
        max_token_len=capacity,
        tokens=tokens,
        tokens_left_out=int(counted.tokens_left_out.sum()) + counted.tokens_cut_off,
        tokens_left_out_by_reason=_tokens_by_reason(counted),
        num_supervised=int(plan.sum_per_pack(items.num_supervised).sum()),
        unknown_keys=noted.most_frequent_names("unknown_keys"),
        image_modes=noted.most_frequent_names("image_modes"),
        placeholders_as_text=noted.most_frequent_names("placeholders_as_text") or None,
        removed=noted.num_removed_pictures,
        weighted_share=round(noted.num_weighted / max(1, noted.num_supervised), 6),
        notes=noted.counts,
        by_media=_by_media(counted, media_type_of_packs(items, plan), lens, room),
        shared=_sharing_figures(lengths, plan),
        mixture=mixture_figures(shares, lengths, plan, capacity) if shares else None,
        by_split=count_packs_by_split(items, plan),
        turns=count_packs_by_mixture_turn(items, plan),
        members_per_pack=Tally(features["members"]).spread(),
        token_len=counted.lens.spread(),
        visual_tokens_per_pack=Tally(features["visual_tokens"]).spread(),
        attention_cost=_mean_max_and_cv(features["attention_cost"]),
        flops=_flops(items, plan, cost),
        steps=measure_evenness_of_steps(items, plan, packing.topology, cost),
        expanded=expansion._asdict() if expansion else None,
    )


def _reasons(lengths: Lengths, counted: PlanCounts) -> Counter[str]:
    """Count the skipped samples by reason; raise PackError if samples and parts do not add up."""
    by_plan = {reason.value: int(counted.left_out[code]) for code, reason in enumerate(LEFT_OUT) if reason}
    reasons, num_packed = lengths.reasons + Counter(by_plan), int(counted.packed.sum())
    num_parts = len(lengths.items) - lengths.num_samples - counted.num_parts_left_out
    if lengths.num_samples != num_packed + reasons.total() or counted.num_parts != num_parts:
        raise PackError(
            f"{lengths.num_samples} samples, but {num_packed} packed and {dict(reasons)} skipped;"
            f" {counted.num_parts} of {num_parts} parts packed: a bug"
        )
    return reasons


def _tokens_by_reason(counted: PlanCounts) -> dict[str, int]:
    tokens = {reason.value: int(counted.tokens_left_out[code]) for code, reason in enumerate(LEFT_OUT) if reason}
    by_reason = {name: tokens[name] for name, number in zip(tokens, counted.left_out[1:], strict=True) if number}
    return by_reason | ({Reason.CUT_OFF.value: counted.tokens_cut_off} if counted.num_cut_off else {})


def _by_media(counted: PlanCounts, media: AnyInts, lens: Ints, room: Ints) -> dict[str, MediaFigures]:
    """Return the figures of each media type; `media`, `lens` and `room` are type, tokens and capacity of each pack."""
    num_packs, tokens, rooms = (count_by_medium(media, values).tolist() for values in (None, lens, room))
    return {
        name: MediaFigures(
            samples_in=int(counted.samples[code]),
            samples=int(counted.packed[code]),
            packs=num_packs[code],
            tokens=int(counted.tokens[code]),
            fill=_fill(tokens[code], rooms[code]),
        )
        for code, name in [*enumerate(MEDIA_TYPES), (-1, _UNKNOWN)]
        if counted.samples[code] or num_packs[code]
    }


def _sharing_figures(lengths: Lengths, plan: PackPlan) -> dict[str, int] | None:
    """Count the trees in packs, their samples, and the tokens and media that sharing saves; None: nothing is shared."""
    if lengths.shared is None:
        return None
    members, shared = plan.items, lengths.shared["token_len"][plan.items] > 0
    begins = ~shared[:-1] & shared[1:]
    saved = {name: int(values[members].sum()) for name, values in lengths.shared.items()}
    return {
        "trees": int(begins.sum()),
        "samples": int(shared.sum() + begins.sum()),
        "tokens": saved["token_len"],
        **{medium.plural: saved[medium.column] for medium in (IMAGE, VIDEO)},
        "visual_tokens": saved["num_visual_tokens"],
    }


def _flops(items: Items, plan: PackPlan, cost: CostModel) -> dict[str, Any]:
    """Return the FLOPs of one forward pass over all packs, by weights, attention and vision, and the model's source."""
    lm, vision = flops_of_packs(items, plan, cost).sum(axis=1).tolist()
    weights = cost.lm_token * float(plan.sum_per_pack(items.lens).sum())
    return {"weights": weights, "attention": max(0.0, lm - weights), "vision": vision, "source": cost.source}


def _mean_max_and_cv(costs: Ints) -> dict[str, Any]:
    mean = float(costs.mean()) if len(costs) else 0.0
    return {"mean": mean, "max": int(costs.max(initial=0)), "cv": float(costs.std()) / mean if mean else 0.0}


def num_lost_to_bad_data(skipped_by_reason: Mapping[str, int]) -> int:
    """Sum the samples that were skipped because something is wrong with them, not by a setting."""
    return sum(n for reason, n in skipped_by_reason.items() if not Reason(reason).is_policy)


def _fill(tokens: Any, room: Any) -> float:
    return round(float(tokens) / float(room), 6) if room else 0.0


#: costs of a step, and their names
STEP_COSTS = {"lm": "language model", "vision": "vision encoder", "both": "both"}


def measure_evenness_of_steps(
    items: Items, plan: PackPlan, topology: Topology, cost: CostModel
) -> dict[str, Any] | None:
    """Measure how even the steps of the first split are: as planned, without layout, and in random order.

    None: a step has one pack, or there are no packs.
    """
    if not topology.has_several_packs_per_step or not plan.num_packs:
        return None
    split = split_of_packs(items, plan)
    is_first = split == split[0]
    costs, trained = flops_of_packs(items, plan, cost)[:, is_first], plan.sum_per_pack(items.num_supervised)[is_first]
    order, chance = reading_order(len(trained), topology), random_keys(len(trained), 0)
    orders = {"in_order": order, "by_chance": np.argsort(chance, kind="stable")}
    if plan.places is not None:
        orders["without"] = np.argsort(plan.places[is_first])[order]
    world = topology.data_parallel, topology.micro_batches
    spreads = {name: evenness_figures(costs, trained, *world, read) for name, read in orders.items()}
    return {"split": SPLITS[split[0]], "cost": cost.source, **spreads}
