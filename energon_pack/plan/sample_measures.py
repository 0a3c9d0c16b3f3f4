"""Measure a sample when it comes: its costs in a pack, and whether it may be packed at all. No pixel is decoded."""

import logging
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from energon_pack.errors import PackError, one_line
from energon_pack.lengths.same_media import can_share_beginning
from energon_pack.plan.pool import WaitingPool, costs_of_sample
from energon_pack.plan.settings import (
    CUTTING_POLICIES,
    GroupBy,
    Overlong,
    PackingConfig,
    SharedBeginnings,
    exceeded_limits,
    excess_text,
)
from energon_pack.plan.trees import COUNTS
from energon_pack.run.untrusted_input import dataclass_from_dict
from energon_pack.samples.member import MemberInput
from energon_pack.samples.sample import media_type
from energon_pack.samples.settings import ControlTokens, PreferenceTake, ReadSettings
from energon_pack.samples.skip import NOTHING_TRAINED_DETAIL, Reason, Skip
from energon_pack.templates.beginnings import beginning_hashes
from energon_pack.templates.model_inputs import sample_of
from energon_pack.templates.sample import Rendered, Sample
from energon_pack.templates.settings import LabelsConfig, UntrainedSamplePolicy
from energon_pack.templates.template import Template

_log = logging.getLogger(__name__)
_MAX_BUFFERS_WAITED = 10  # buffers for which a sample may wait for others of its group


@dataclass(frozen=True)
class SampleMeasures:
    """The length of a sample, its cost in a pack, and its media type, known before it is encoded."""

    token_len: int
    #: its cost for each limit that is set, tokens first
    costs: tuple[int, ...]
    #: text, image, video or mix
    media_type: str
    #: frames of its clips, if only samples with equally many share a pack; else 0
    clip_frames: int = 0
    #: of a preference pair, whose `token_len` is that of its pack: tokens of its sides, then how many tokens, images
    #: and videos they share
    pair: tuple[int, ...] = ()


class SampleMeasurer:
    """Measures samples as they come, to decide which of them share a pack, with the chat template that encodes them.

    Args:
        control_tokens: how samples that spell a special token are treated.
        drop: leave faulty samples out; else they end the training.
        untrained: `labels.untrained`.
    """

    def __init__(
        self,
        template: Template,
        packing: PackingConfig,
        control_tokens: ControlTokens,
        drop: bool,
        untrained: UntrainedSamplePolicy = UntrainedSamplePolicy.drop,
    ):
        packing.check()
        _refuse_settings_with_plan(packing, untrained)
        self.packing = packing
        self._template, self._control_tokens, self._drop = template, control_tokens, drop
        #: samples that were logged already
        self._named: set[str] = set()
        self._num_named: Counter[Reason] = Counter()

    def measure(self, samples: Sequence[Sample]) -> list[SampleMeasures | Skip]:
        """Measure samples; for a sample that no pack may hold, return a Skip with the reason in its place."""
        return self.measure_sides([[sample] for sample in samples])

    def measure_sides(self, sides_of_samples: Sequence[Sequence[Sample]]) -> list[SampleMeasures | Skip]:
        """Measure samples as `measure` does, each of them a list: of itself, or of the two sides of a pair."""
        rendered = [self._render(sides) for sides in sides_of_samples]
        texts = [text for sides in rendered if not isinstance(sides, Skip) for text in sides]
        counts = iter(self._template.count(texts))
        return [
            texts if isinstance(texts, Skip) else self._add_up_sides(texts, [next(counts) for _ in texts], sides)
            for texts, sides in zip(rendered, sides_of_samples, strict=True)
        ]

    def measure_member(self, member: MemberInput) -> SampleMeasures | None:
        """Measure a sample by the headers of its media; None: it is left out and logged."""
        try:
            (measured,) = self.measure([sample_of(member)])
        except (Skip, OSError, ValueError) as error:  # a medium that is missing or damaged
            measured = error if isinstance(error, Skip) else Skip(Reason.UNREADABLE_MEDIA, one_line(error))
        if isinstance(measured, SampleMeasures):
            return measured
        self.leave_out(member.sample_id, measured)
        return None

    def group(self, measured: SampleMeasures, dataset: Hashable) -> Hashable:
        """Return the group of a sample; samples of different groups share no pack."""
        group = {GroupBy.media: measured.media_type, GroupBy.dataset: dataset}.get(self.packing.group_by)
        return f"{group}: clips of {measured.clip_frames} frames" if measured.clip_frames else group

    def choose_packs(
        self, measured: Sequence[SampleMeasures], datasets: Sequence[Hashable], ages: Sequence[int], at_end: bool
    ) -> list[list[int]]:
        """Make full packs from about half of the samples, and let the others wait; return each pack as indices.

        Args:
            datasets: of each sample; they matter for `packing.group_by=dataset`.
            ages: how many samples came after each one; those that have waited very long are packed first.
            at_end: no more samples come, so pack all of them.
        """
        pool = WaitingPool(self.packing, max(1, len(measured)))
        for i, (sample, dataset, age) in enumerate(zip(measured, datasets, ages, strict=True)):
            pool.add(i, sample.costs, self.group(sample, dataset), since=-(age // _MAX_BUFFERS_WAITED))
        if at_end:
            pool.plan_rest()
            return [[sample.name for sample in pool.take()] for _ in range(pool.num_planned_packs)]
        packs = [pool.take()]
        while pool.num_planned_packs or (pool.can_fill_pack and 2 * len(pool) > len(measured)):
            packs.append(pool.take())
        return [[sample.name for sample in pack] for pack in packs]

    def leave_out(self, sample_id: str, skip: Skip) -> None:
        """Log that a sample is in no pack, or raise PackError if the settings do not allow to leave it out."""
        if skip.reason is Reason.OVERLONG and self.packing.overlong is Overlong.error:
            raise PackError(f"{sample_id}: {skip} (packing.overlong=drop leaves such a sample out)")
        if not skip.reason.is_policy and not self._drop:
            raise PackError(f"{sample_id}: {skip} (on_bad_member=drop leaves such a sample out)")
        if sample_id in self._named:  # in an epoch before
            return
        self._named.add(sample_id)
        self._num_named[skip.reason] += 1
        num = self._num_named[skip.reason]
        if not skip.reason.is_policy or num & (num - 1) == 0:  # by policy: only the 1st, 2nd, 4th, 8th …
            _log.warning("left out: %s: %s; %d by this worker so far", sample_id, skip, num)

    def _render(self, sides: Sequence[Sample]) -> list[Rendered] | Skip:
        rendered: list[Rendered] = []
        try:
            for sample in sides:
                rendered.append(self._template.render(sample))
                rendered[-1].skip_if_left_out(self._control_tokens)
        except Skip as skip:
            return skip
        return rendered

    def _add_up_sides(
        self, rendered: Sequence[Rendered], lens: Sequence[tuple[int, int]], sides: Sequence[Sample]
    ) -> SampleMeasures | Skip:
        """Add up a sample's sides, without what they share; `lens`: for each, its tokens and its trained tokens."""
        if not all(token_len for token_len, _ in lens):
            return Skip(Reason.PROCESSOR_ERROR, "the chat template renders nothing")
        if not all(num_supervised for _, num_supervised in lens):
            return Skip(Reason.NOTHING_TRAINED, NOTHING_TRAINED_DETAIL)
        kinds, shared = [medium.kind for medium in sides[0].media], self._shared(rendered, sides)
        each = [
            {"token_len": token_len, **text.media_counts(kinds)}
            for text, (token_len, _) in zip(rendered, lens, strict=True)
        ]
        counts = {name: sum(one[name] for one in each) - shared.get(name, 0) for name in each[0]}
        pair: tuple[int, ...] = ()
        if len(sides) > 1:
            squares = sum(one["token_len"] ** 2 for one in each) - shared.get("token_len", 0) ** 2
            counts |= {"max_members": len(sides), "max_attention_cost": squares}
            pair = *(one["token_len"] for one in each), *(shared.get(name, 0) for name in COUNTS[:3])
        costs, frames = costs_of_sample(counts, self.packing), rendered[0].clip_frames
        measured = SampleMeasures(counts["token_len"], costs, media_type(kinds), frames, pair)
        name, longest = self.packing.sample_token_limit
        if measured.costs[0] > longest:
            return Skip(Reason.OVERLONG, excess_text(name, measured.costs[0], longest))
        has_own_pack = measured.costs[0] > self.packing.max_token_len  # which breaks the first limit, and may
        broken = exceeded_limits(counts, self.packing)[has_own_pack:]
        return Skip(Reason.OVER_CAP, ", ".join(broken)) if broken else measured

    def _shared(self, rendered: Sequence[Rendered], sides: Sequence[Sample]) -> dict[str, int]:
        """Return the counts of the beginning that the sides of a pair share by `packing.share`; {}: they share none."""
        packing, media = self.packing, sides[0].media
        if len(sides) < 2 or packing.share is SharedBeginnings.none or not can_share_beginning(media):
            return {}
        of_media = [(medium.kind, b"") for medium in media]  # both sides have the same
        chosen, rejected = (
            {(one.high, one.low): one for one in each if one.may_fork and one.token_len >= packing.share_min_tokens}
            for each in beginning_hashes(self._template, rendered, [of_media, of_media])
        )
        forks = [one for key, one in chosen.items() if key in rejected]
        forks = [one for one in forks if one.ends_medium or packing.share is SharedBeginnings.prefix]
        return max(forks, key=lambda one: one.token_len)._asdict() if forks else {}


def make_sample_measurer(manifest: Mapping[str, Any], template: Template, drop_faulty: bool) -> SampleMeasurer:
    """Return a measurer with the settings in the manifest of a packed dataset; `drop_faulty`: see `SampleMeasurer`."""
    packing = dataclass_from_dict(PackingConfig, manifest["packing"])
    read = dataclass_from_dict(ReadSettings, manifest["source"])
    if read.take == PreferenceTake.both:
        raise PackError("packing_buffer_size packs single samples, and the dataset has preference pairs (take=both)")
    untrained = dataclass_from_dict(LabelsConfig, manifest["labels"]).untrained
    return SampleMeasurer(template, packing, read.control_tokens, drop_faulty, untrained)


def _refuse_settings_with_plan(packing: PackingConfig, untrained: UntrainedSamplePolicy) -> None:
    """Raise PackError for settings that need a plan and change samples; warn of those that only order packs."""
    refused = {
        f"packing.overlong={packing.overlong.value}": packing.overlong in CUTTING_POLICIES,
        "packing.need_image=true": packing.need_image,
        f"labels.untrained={untrained.value}": untrained is UntrainedSamplePolicy.keep,
    }
    for setting in (name for name, is_set in refused.items() if is_set):
        raise PackError(f"{setting} needs a plan over all samples: pack before training, or LazyPackedDataset")
    if packing.window is not None or packing.topology.has_several_packs_per_step:
        _log.warning("packing.window and packing.topology need a plan and are ignored: packs are made as samples come")
