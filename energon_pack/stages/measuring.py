"""The first stage: find all samples, and measure the length of each. The cache keeps the results."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from energon_pack.config import OnDamaged, PackConfig, plain
from energon_pack.config.resolve import Places
from energon_pack.lengths.index import IndexedShard, first_samples, index_shards
from energon_pack.lengths.measure import by_trusted_engine, measure_part, measure_shards, without_wrong_shortcut
from energon_pack.lengths.method import Method, prepare
from energon_pack.plan.expand import expand
from energon_pack.plan.items import Lengths
from energon_pack.plan.settings import Share
from energon_pack.plan.splits import split_shares
from energon_pack.run.context import Run
from energon_pack.run.part import Part, Spans
from energon_pack.run.scratch import Scratch
from energon_pack.sources.mixture import Mixture
from energon_pack.sources.shard import Shard
from energon_pack.steps.cost import CostModel, cost_model
from energon_pack.templates.folder import local_folder
from energon_pack.templates.settings import TemplateSettings


@dataclass(frozen=True)
class Measured:
    """The samples that are drawn from the source."""

    lengths: Lengths
    num_found: int  # all samples in the source, also those that its settings leave out
    num_repeated: int  # draws of samples that were drawn before
    mixture: Mixture | None = None


def index_source(
    config: PackConfig, places: Places, run: Run, shards: Sequence[Shard] | None = None
) -> list[IndexedShard]:
    """Find the place of each sample of the source, and draw samples by the `sample_ratio` of their file.

    Args:
        shards: the shards to index; None: the whole source.
    """
    with run.timed("index"):
        chosen = places.source.shards if shards is None else [*shards]
        return index_shards(chosen, config.source.on_damaged is OnDamaged.keep, config.seed, run)


def prepare_method(config: PackConfig, places: Places, run: Run) -> tuple[Method, CostModel]:
    """Return the method that measures samples, and the model of their cost in training."""
    with run.timed("processor"):
        folder = local_folder(
            places.processor or config.model.named_processor(), config.model.revision
        )  # a hub id is looked up once
        model = replace(config.model, processor=os.fspath(folder))
        settings = TemplateSettings(model, config.media, config.labels.of_text)
        with_beginnings = config.packing.share is not Share.none
        method = prepare(settings, config.source.reading, config.measure.engine.value, run, with_beginnings)
        return by_trusted_engine(method, run), cost_model(folder)


def measure_source(
    config: PackConfig, places: Places, indexed: list[IndexedShard], method: Method, run: Run
) -> tuple[Measured, Method]:
    """Measure the drawn samples, and the samples that `labels.expand` makes of them.

    Returns another method if the shortcut was wrong.
    """
    source, limit = places.source, config.source.limit
    with run.timed("lengths"):
        first = first_samples(indexed, limit)
        flavor, shares = config.flavor(), split_shares(plain(config.output.splits))

        def lengths_by(method: Method) -> Lengths:
            measured = measure_shards(first, method, run)
            scratch = Scratch(run.cache())
            lengths = Lengths(
                measured, limit, flavor, shares, config.seed, scratch, method.with_beginnings,
                config.labels.untrained,
            )  # fmt: skip
            return expand(lengths, config.labels, method, run)

        lengths, method = without_wrong_shortcut(lengths_by, method)
        num_repeated = sum(item.num_repeated for item in indexed)
        num_found = sum(item.num_rows for item in indexed) + source.num_left_out
        return Measured(lengths, num_found, num_repeated, source.mixture), method


def measure_share(config: PackConfig, places: Places, part: Part, run: Run) -> int:
    """Measure one part of the source into the cache; return how many of its samples have lengths there now.

    All processes cut the bytes of the source into the same equal spans, so a part reads nothing of the others.
    """
    shards = places.source.shards
    spans = Spans([shard.size for shard in shards])
    is_counted = config.source.limit is not None
    chosen = range(len(shards)) if is_counted else spans.overlapping(part)  # a limit counts the samples of all shards
    indexed = index_source(config, places, run, [shards[number] for number in chosen])
    method, _ = prepare_method(config, places, run)
    with run.timed("lengths"):
        first = first_samples(indexed, config.source.limit)
        rows = [spans.rows(part, number, item.num_samples) for number, item in zip(chosen, first, strict=False)]
        return measure_part(first, rows, method, run)
