"""The first stage: find all samples, and measure the length of each. The cache keeps the results."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from energon_pack.config import OnDamaged, plain
from energon_pack.errors import PackError, amount
from energon_pack.lengths.drawn_videos import with_decoded_videos
from energon_pack.lengths.index import IndexedShard, first_samples, index_shards
from energon_pack.lengths.measure import measure_rows, measure_shards, with_trusted_engine
from energon_pack.lengths.method import Method, method_of_model
from energon_pack.lengths.unused_map import unused_line
from energon_pack.plan.expand import expand
from energon_pack.plan.items import Lengths
from energon_pack.plan.pairs import measure_sides
from energon_pack.plan.settings import Share
from energon_pack.plan.splits import split_shares
from energon_pack.run.console import say
from energon_pack.run.scratch_arrays import Scratch
from energon_pack.run.work_parts import EqualSpans, Part
from energon_pack.samples.settings import Take
from energon_pack.sources.media_map import media_map_of
from energon_pack.sources.mixture import Mixture
from energon_pack.sources.shard import Shard
from energon_pack.stages.pack_run import PackRun
from energon_pack.templates.families.rules import MediaRules
from energon_pack.templates.folder import local_folder
from energon_pack.templates.processor import media_rules_of
from energon_pack.templates.settings import TemplateSettings


@dataclass(frozen=True)
class Measured:
    """The lengths of all samples that are drawn from the source, and how they were measured."""

    lengths: Lengths
    method: Method
    num_found: int  # all samples in the source, also those that its settings leave out
    num_repeated: int  # draws of samples that were drawn before
    mixture: Mixture | None = None


def index_source(run: PackRun, shards: Sequence[Shard] | None = None) -> list[IndexedShard]:
    """Find each sample in these shards (None: the source's), and draw samples by the `sample_ratio` of their file."""
    with run.timed("index"):
        chosen = run.source.shards if shards is None else [*shards]
        return index_shards(chosen, run.config.source.on_damaged is OnDamaged.keep, run.config.seed, run)


def prepare_method(run: PackRun) -> Method:
    """Load the processor, and return the method by which it measures samples."""
    config = run.config
    with run.timed("processor"):
        folder = local_folder(run.processor, config.model.revision)  # a hub id is looked up once
        model = replace(config.model, processor=os.fspath(folder))
        settings = TemplateSettings(model, config.media, config.labels.as_labels)
        with_beginnings = config.packing.share is not Share.none
        method = method_of_model(settings, config.source.reading, config.measure.engine.value, run, with_beginnings)
        if run.source.mixture is not None:
            check_tiles(run.source.mixture, media_rules_of(method.template_folder))
        keep = config.source.on_damaged is OnDamaged.keep
        return with_trusted_engine(replace(method, keep_damaged=keep), run)


def check_tiles(mixture: Mixture, rules: MediaRules | None) -> None:
    """Raise PackError if an entry of a mixture is meant for images of more or fewer tiles than the model takes.

    `rules`: how the model counts tokens of media; None: its full processor does.
    """
    asking = [entry for entry in mixture.entries if entry.max_tiles is not None]
    _, tiles = (rules and rules.settings.get("patches")) or (1, None)
    if asking and tiles is None:
        names = ", ".join(entry.name for entry in asking[:3]) + ", …" * (len(asking) > 3)
        say(f"max_dynamic_patch of {names} is not read: the model has no such tiles")
    for entry in asking:
        if entry.max_tiles != (tiles or entry.max_tiles):
            raise PackError(
                f"mixture: {entry.name} has max_dynamic_patch={entry.max_tiles}, and the model takes {tiles} tiles:"
                f" +model.processor_kwargs.max_patches={entry.max_tiles} sets it for all, or remove it from the entry"
            )


def measure_source(run: PackRun, indexed: list[IndexedShard], method: Method) -> Measured:
    """Measure all samples, and those that `labels.expand` makes of them; results come from the cache if it has them."""
    config, source = run.config, run.source
    with run.timed("lengths"):
        first = first_samples(indexed, config.source.limit)
        flavor, shares = config.flavor(), split_shares(plain(config.output.splits))

        measured = measure_shards(first, method, run)
        measured = with_decoded_videos(measured, method, config.measure.verify, config.seed, run)
        lengths = Lengths(
            measured, flavor, shares, config.seed, Scratch(run.cache()),
            method.with_beginnings, config.labels.untrained,
        )  # fmt: skip
        is_paired = config.source.take is Take.both
        lengths = measure_sides(lengths, method, run) if is_paired else expand(lengths, config.labels, method, run)
        media_map, tables = media_map_of(config.source.media_map), lengths.tables(("parts", "detail"), with_parts=False)
        places = {place for shard in source.shards for place in (shard.path, shard.media_root or "")}
        if line := unused_line(media_map, places, (table for _, _, table in tables)):
            say(line)
        num_repeated = sum(item.num_repeated for item in indexed)
        num_found = sum(item.num_rows for item in indexed) + source.num_left_out
        return Measured(lengths, method, num_found, num_repeated, source.mixture)


def measure_part(run: PackRun, part: Part) -> dict[str, int]:
    """Measure one part of the source into the cache; return as `samples` how many of the part it holds now.

    All processes cut the bytes of the source into the same equal spans, so a part reads nothing of the others.
    """
    source, shards = run.config.source, run.source.shards
    spans = EqualSpans([shard.size for shard in shards])
    is_counted = source.limit is not None  # it counts the samples of all shards
    chosen = range(len(shards)) if is_counted else spans.overlapping_items(part)
    indexed = index_source(run, [shards[number] for number in chosen])
    method = prepare_method(run)
    with run.timed("lengths"):
        first = first_samples(indexed, source.limit)
        rows = [spans.rows_in(part, number, item.num_samples) for number, item in zip(chosen, first, strict=False)]
        number = measure_rows(first, rows, method, run)
    say(f"the lengths of {amount(number, 'sample')} are in {run.cache()}: part {part} of the source")
    return {"samples": number}
