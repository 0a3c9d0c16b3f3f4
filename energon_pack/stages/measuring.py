"""The first stage: find all samples, and measure the length of each. The cache keeps the results."""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from energon_pack.config.stage_settings import MeasuringSettings, MethodSettings
from energon_pack.errors import PackError, amount
from energon_pack.lengths.drawn_videos import remeasure_miscounted_videos
from energon_pack.lengths.index import IndexedShard, first_samples, index_shards
from energon_pack.lengths.measure import KEY_PREFIX, measure_rows, measure_shards, replace_engine_if_distrusted
from energon_pack.lengths.method import Method, build_method
from energon_pack.plan.expand import expand_conversations, measure_sides
from energon_pack.plan.items import Lengths
from energon_pack.run.bounded_memory import Scratch
from energon_pack.run.console import say
from energon_pack.run.executors import EqualSizeParts, WorkPart
from energon_pack.run.workshop import Workshop
from energon_pack.sources.find import Source
from energon_pack.sources.media_files import MediaMap, replace_mapped_prefix
from energon_pack.sources.mixture import Mixture
from energon_pack.sources.shard import Shard
from energon_pack.templates.families.rules import MediaRules
from energon_pack.templates.full_processor import find_or_download_folder
from energon_pack.templates.processor import media_rules_of
from energon_pack.templates.settings import Expand


@dataclass(frozen=True)
class Measured:
    """The lengths of all samples that are drawn from the source, and how they were measured."""

    lengths: Lengths
    method: Method
    num_found: int  # all samples in the source, also those that its settings leave out
    num_repeated: int  # draws of samples that were drawn before
    mixture: Mixture | None = None


def index_source(shards: Sequence[Shard], keep_damaged: bool, seed: int, workshop: Workshop) -> list[IndexedShard]:
    """Find each sample in these shards of a source, and draw samples by the `sample_ratio` of their file.

    Says so if all samples are measured anew because the cache is another version's.
    """
    kept = [folder.name for folder in workshop.cache().glob("lengths/*")]
    if kept and not any(name.startswith(KEY_PREFIX) for name in kept):
        say(f"the cache in {workshop.cache()} is another version's: all samples are measured anew")
    with workshop.timed("index"):
        return index_shards([*shards], keep_damaged, seed, workshop)


def prepare_measuring_method(settings: MethodSettings, workshop: Workshop) -> Method:
    """Load the processor, and return the method by which it measures samples."""
    with workshop.timed("processor"):
        model = settings.template.model
        folder = find_or_download_folder(model.path_or_hub_id(), model.revision)  # a hub id is looked up once
        template = replace(settings.template, model=replace(model, processor=os.fspath(folder)))
        method = build_method(template, settings.read, settings.engine, workshop, settings.with_beginnings)
        if settings.mixture is not None:
            refuse_other_max_tiles(settings.mixture, media_rules_of(method.template_folder))
        return replace_engine_if_distrusted(replace(method, keep_damaged=settings.keep_damaged), workshop)


def refuse_other_max_tiles(mixture: Mixture, rules: MediaRules | None) -> None:
    """Raise PackError if an entry of a mixture names another number of tiles of an image than the model takes.

    `rules`: those that count the model's media. None, or without tiles: only print that the number is not read.
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


def measure_source(
    source: Source, indexed: list[IndexedShard], method: Method, settings: MeasuringSettings, workshop: Workshop
) -> Measured:
    """Measure all samples, and those that `labels.expand` makes of them; results come from the cache if it has them."""
    with workshop.timed("lengths"):
        limited = first_samples(indexed, settings.limit)
        measured = measure_shards(limited, method, workshop)
        measured = remeasure_miscounted_videos(measured, method, settings.verify, settings.seed, workshop)
        lengths = Lengths(
            measured, settings.flavor, settings.shares, settings.seed, Scratch(workshop.cache()),
            method.with_beginnings, settings.labels.untrained,
        )  # fmt: skip
        if settings.takes_pairs:
            lengths = measure_sides(lengths, method, workshop)
        elif settings.labels.expand is not Expand.none:
            lengths = expand_conversations(lengths, settings.labels, method, workshop)
        tables = lengths.tables(("parts", "detail"), with_parts=False)
        places = {place for shard in source.shards for place in (shard.path, shard.media_root or "")}
        if line := _line_on_unused_map(settings.media_map, places, (table for _, _, table in tables)):
            say(line)
        num_repeated = sum(item.num_repeated for item in indexed)
        num_found = sum(item.num_rows for item in indexed) + source.num_left_out
        return Measured(lengths, method, num_found, num_repeated, source.mixture)


def measure_part_of_source(
    source: Source, part: WorkPart, method_settings: MethodSettings, settings: MeasuringSettings, workshop: Workshop
) -> dict[str, int]:
    """Measure one part of the source into the cache; return as `samples` how many of the part it holds now.

    All processes cut the bytes of the source into the same equal spans, so a part reads nothing of the others.
    """
    shards, limit = source.shards, settings.limit
    spans = EqualSizeParts([shard.size for shard in shards])
    is_counted = limit is not None  # it counts the samples of all shards
    chosen = range(len(shards)) if is_counted else spans.overlapping_items(part)
    indexed = index_source([shards[number] for number in chosen], method_settings.keep_damaged, settings.seed, workshop)
    method = prepare_measuring_method(method_settings, workshop)
    with workshop.timed("lengths"):
        limited = first_samples(indexed, limit)
        rows = [
            spans.rows_of_item_in(part, number, item.num_samples) for number, item in zip(chosen, limited, strict=False)
        ]
        number = measure_rows(limited, rows, method, workshop)
    say(f"the lengths of {amount(number, 'sample')} are in {workshop.cache()}: part {part} of the source")
    return {"samples": number}


def _line_on_unused_map(media_map: MediaMap, places: Iterable[str], tables: Iterable[pa.Table]) -> str:
    """Return a line about the entries of a map that no medium needs: they may be misspelled; "" if there are none.

    Args:
        places: the files of the source and the folders of their media; a mixture may name them by the map.
        tables: the media of all samples, in the column `parts`, and why samples are left out, in `detail`.
    """
    every = [*places]
    unused = [old for old, new in media_map if not any(place.startswith(new) for place in every)]
    for table in tables if unused else ():
        names = pc.list_flatten(table["parts"].combine_chunks()).field("name")
        unused = [
            old for old in unused if not _any_in_folder(names, old) and not _is_in_skip_details(table["detail"], old)
        ]
    if not unused:
        return ""
    named = " or ".join(map(repr, unused))
    return f"source.media_map: no medium's path begins with {named}: is it spelled as in the data?"


def _any_in_folder(names: pa.Array, old: str) -> bool:
    """Tell whether a name lies in the folder `old`, as `replace_mapped_prefix` says."""
    begun = names.filter(pc.starts_with(names, old))
    return any(replace_mapped_prefix(name, ((old, "."),)) != name for name in begun.unique().to_pylist())


def _is_in_skip_details(details: pa.ChunkedArray, old: str) -> bool:
    """Tell whether the reason why a sample is left out has the path: a missing medium is in no other column."""
    told = re.escape(repr(old)[1:-1].rstrip("/\\")) + r"[/'\\]"
    return bool(pc.any(pc.match_substring_regex(details, told)).as_py())
