"""Show a sample of a source before anything is packed: as it was read, as it is understood, and its tokens.

Only this sample is measured. Packing's own functions say what packing would do with it.
"""

import argparse
import json
import random
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from energon_pack.config import Stage
from energon_pack.config.compose import compose_config
from energon_pack.config.stage_settings import StageSettings
from energon_pack.errors import PackError, amount
from energon_pack.inspect import is_hydra_override
from energon_pack.lengths.method import Method
from energon_pack.lengths.worker import LengthsRow, render_and_count, set_warnings
from energon_pack.online.samples import as_sample
from energon_pack.plan.expand import expansion_cuts
from energon_pack.plan.note_counts import NOTES
from energon_pack.plan.sample_measures import SampleMeasurer
from energon_pack.plan.settings import CAPPED_COLUMNS, exceeded_limits
from energon_pack.report.data_rules import NOTE_REMARKS
from energon_pack.report.views.screens import member_blocks, print_blocks, print_commands, print_heading, print_sample
from energon_pack.report.views.view import MediumView, MemberView, add_tokens_to_view, token_decoder_of, turns_of
from energon_pack.run.console import say
from energon_pack.samples.conversation import ReadSample
from energon_pack.samples.cut import member_id
from energon_pack.samples.keys import similar_key_hint
from energon_pack.samples.media.kinds import KINDS
from energon_pack.samples.pairs import cuts_of_pair
from energon_pack.samples.placeholders import num_media_before
from energon_pack.samples.raw_record import parse_sample_json
from energon_pack.samples.sample import media_type
from energon_pack.samples.skip import NOTHING_TRAINED_DETAIL, Reason, Skip
from energon_pack.sources.find import Source
from energon_pack.sources.reader import SourceReader
from energon_pack.sources.sample import cut_sample, read_measured_sample, read_sample
from energon_pack.sources.shard import Shard
from energon_pack.sources.source_file import IndexRow, rows_of
from energon_pack.sources.source_path import find_source, source_summary
from energon_pack.sources.wds import dotted_keys_error, index_metadata, parse_index_damage
from energon_pack.steps.topology import Topology
from energon_pack.templates.processor import build_uncached_template
from energon_pack.templates.sample import Sample
from energon_pack.templates.settings import TemplateSettings, UntrainedSamplePolicy
from energon_pack.templates.template import Template

_MAX_STRING_CHARS = 400  # characters of a string in the raw JSON


@dataclass(frozen=True)
class ShownSample:
    """A sample of a source, as the terminal shows it: turns, media and tokens (`view`), JSON, and remarks."""

    view: MemberView
    raw: str  # its JSON or text, long strings shortened
    remarks: list[str] = field(default_factory=list)  # notes to print
    rejected: MemberView | None = None  # of a preference pair, its rejected side; `view` is the chosen one


def show_sample(options: argparse.Namespace) -> int:
    """Print a sample of a source (`inspect --source`); return the exit code."""
    if options.html:
        raise PackError(
            "--html is for a pack; energon-pack stage=plan makes a page with pictures of a source's samples"
        )
    overrides = list(filter(is_hydra_override, options.given))
    named = [text for text in options.given if not is_hydra_override(text)]
    if len(named) > 1:
        raise PackError(f"{' '.join(named)}: one number or id of a sample")
    config = replace(compose_config(overrides), stage=Stage.plan)  # nothing is written, whatever the overrides say
    if options.processor:
        config = replace(config, model=replace(config.model, processor=options.processor))
    source = find_source(config.source, options.source)
    indexed, place, number = _choose_sample(source, named[0] if named else None, options.random)
    shard = indexed.shard
    settings = StageSettings.of(config, source, config.model.processor or "")
    template, missing = _load_template(settings.method.template)
    with SourceReader() as reader:
        looked = read_sample_to_show(settings, reader, shard, indexed.rows[place], template)
    num_files = len(source.shards)
    where = f"sample {place:,} of {shard.name}" + f", a file of {num_files:,} in the source" * (num_files > 1)
    remarks = [*indexed.damage, *looked.remarks]
    say(f"read as: {source_summary(source)}")
    remarks += [missing] if missing else []
    print_sample(looked.view, where, looked.raw, remarks, options.full)
    print_rejected_side(looked, None)
    words = " ".join(map(shlex.quote, ["--source", options.source, *overrides]))
    following = number + 1 if options.random is None else "--random"
    print_commands(f"python -m energon_pack.inspect {words} {following}", ["an id", "--random"])
    return 0


def read_sample_to_show(
    settings: StageSettings,
    reader: SourceReader,
    shard: Shard,
    row: IndexRow | LengthsRow,
    template: Template | None,
) -> ShownSample:
    """Read a sample as packing does; if it can't be packed, `view.refused` says why. `template`: None: no tokens."""
    sample_id, reads = shard.sample_id(row.key), settings.method.read
    raw = b""
    try:
        if row.record_size:
            raw = reader.raw(shard, row)
        if row.reason is not None:
            raise Skip(Reason(row.reason), row.detail or "")
        if isinstance(row, LengthsRow):
            sample = read_measured_sample(reader, shard, row, reads)
        else:
            sample = read_sample(reader, shard, row, reads)
            row = LengthsRow(row.key, row.record_part, row.record_offset, row.record_size, [], [], None, 0, 0, 0)
            set_warnings(row, sample, reads)
            if template is not None:
                render_and_count(iter([(row, sample)]), template, Method("", reads))
    except Skip as skip:
        view = MemberView(sample_id, skip.media_type or "unknown", None, None, None, refused=str(skip))
        return ShownSample(view, _short_json(raw, most=None))
    cuts = cuts_of_pair(sample.messages, sample.kinds) if sample.rejected else []
    sides = [cut_sample(sample, cut) for cut in cuts]
    views = [sample_view(side, member_id(sample_id, cut.part), template) for side, cut in zip(sides, cuts, strict=True)]
    view, *rejected = views or [sample_view(sample, sample_id, template)]
    remarks = [
        f"{noted.replace('_', ' ')}: {why} ({knob})"
        for noted, (_, why, knob) in NOTE_REMARKS.items()
        if getattr(row, NOTES[noted])
    ]
    unknown = ", ".join(f"{key}{similar_key_hint(key)}" for key in row.unknown_keys or ())
    remarks += [f"its keys are not known, and nothing reads them: {unknown}"] * bool(unknown)
    before = num_media_before(sample.messages, sample.kinds)
    if any(m["role"] == "assistant" and before[n] < before[n + 1] for n, m in enumerate(sample.messages)):
        remarks.append("an answer holds a medium: its placeholder counts, for there are as many placeholders as media")
    if sample.removed:
        gone = ", ".join(name or "one without a name" for name in sample.removed)
        remarks.append(f"pictures that are missing have lost their places: {gone} (source.missing_media=remove)")
    if template is not None and view.refused is None:
        refused, more = _why_pair_left_out(settings, template, sides) if sides else _why_left_out(settings, row, sample)
        view, remarks = replace(view, refused=refused), remarks + more
    return ShownSample(view, _short_json(raw), remarks, *rejected)


def print_rejected_side(shown: ShownSample, max_chars: int | None) -> None:
    """Print the rejected side of a preference pair; `max_chars`: characters of its text, None: all."""
    if shown.rejected is not None:
        print_heading(shown.rejected.sample_id)
        print_blocks(member_blocks(shown.rejected), max_chars)


def _why_left_out(settings: StageSettings, row: LengthsRow, sample: ReadSample) -> tuple[str | None, list[str]]:
    """Return why packing would leave out a tokenized sample (None: it would not), and remarks, as that it is cut."""
    remarks, packing, labels, flavor = [], settings.plan.packing, settings.lengths.labels, settings.lengths.flavor
    if row.reason is not None:
        return f"{row.reason}: {row.detail}", []
    if unfit := flavor.unfit(row.does_not_fit or {}):
        return f"{Reason.NOT_IN_FLAVOR.value}: {flavor.holder} has no place for it: {unfit}", []
    if cuts := expansion_cuts(sample, labels):
        remarks.append(f"labels.expand={labels.expand.value}: it becomes {amount(len(cuts), 'sample')}")
    if too_much := exceeded_limits({name: getattr(row, name) for name in CAPPED_COLUMNS}, packing):
        remarks.append(f"{', '.join(too_much)}: packing.overlong={packing.overlong.value} says what becomes of it")
    if row.num_supervised:
        return None, remarks
    if labels.untrained is UntrainedSamplePolicy.drop:
        return f"{Reason.NOTHING_TRAINED.value}: {NOTHING_TRAINED_DETAIL}", remarks
    return None, [*remarks, NOTHING_TRAINED_DETAIL]


def _why_pair_left_out(
    settings: StageSettings, template: Template, sides: Sequence[ReadSample]
) -> tuple[str | None, list[str]]:
    """Return why packing would leave out a pair, or None, and what both sides are together."""
    # a plan over all samples has these
    packing = replace(settings.plan.packing, need_image=False, window=None, topology=Topology())
    measurer = SampleMeasurer(template, packing, settings.method.read.control_tokens, drop=True)
    [measured] = measurer.measure_sides([[as_sample(side) for side in sides]])
    if isinstance(measured, Skip) and measured.reason not in (Reason.OVERLONG, Reason.OVER_CAP):
        return str(measured), []
    if isinstance(measured, Skip):
        what = f"{measured.detail}: packing.overlong={packing.overlong.value} says what becomes of the pair"
    else:
        chosen, rejected, shared, *_ = measured.pair
        what = f"{measured.token_len:,} tokens: {chosen:,} chosen, {rejected:,} rejected, {shared:,} of them shared"
    return None, [f"both sides together: {what}"]


def _load_template(settings: TemplateSettings) -> tuple[Template | None, str | None]:
    """Return the template, or None and a sentence that says why there is none."""
    try:
        return build_uncached_template(settings), None
    except (OSError, ValueError, ImportError) as error:
        return None, f"no tokens: {' '.join(str(error).split())[:300]}"


@dataclass(frozen=True)
class IndexedFile:
    """A shard of a source, the rows of its index, and a sentence for each damaged place."""

    shard: Shard
    rows: list[IndexRow]
    damage: list[str]


def index_source_file(source: Source, shard: Shard) -> IndexedFile:
    """Index one file of a source; raises PackError where it can't be read."""
    table = shard.index()
    about = index_metadata(table)
    damage = [f"{shard.name} is damaged: {fault} at byte {offset}" for offset, fault in parse_index_damage(about)]
    damage += filter(None, [dotted_keys_error(shard.path, about)])
    return IndexedFile(shard, [*rows_of(table, IndexRow)], damage)


def _choose_sample(source: Source, named: str | None, seed: int | None) -> tuple[IndexedFile, int, int]:
    """Choose a sample; return its file, its number in the file, and its number in the source.

    Files after the one with the sample are not indexed.

    Args:
        named: the number, id or key of the sample; None: the first.
        seed: draws a sample at random, whose number in the source is not known; 0: another each time; None: no draw.

    Raises:
        PackError: there is no such sample.
    """
    if seed is not None:
        chance = random.Random(seed or None)
        indexed = index_source_file(source, chance.choice(source.shards))
        if not indexed.rows:
            raise PackError(f"{indexed.shard.path} holds no sample")
        place = chance.randrange(len(indexed.rows))
        return indexed, place, place
    number = int(named) if named is not None and named.isdecimal() else None if named else 0
    before = 0
    for shard in _shards_to_search(source.shards, named):
        indexed = index_source_file(source, shard)
        found = _row_of_sample(indexed, named, None if number is None else number - before)
        if found is not None:
            return indexed, found, before + found
        before += len(indexed.rows)
    raise PackError(f"{named or 0}: no such sample among the {before:,} that were looked at")


def _row_of_sample(indexed: IndexedFile, named: str | None, number: int | None) -> int | None:
    """Return a sample's number in a file, by that number, or else by its id or key; None: it is not in this file."""
    if number is not None:
        return number if number < len(indexed.rows) else None
    ids = (row.key == named or indexed.shard.sample_id(row.key) == named for row in indexed.rows)
    return next((place for place, is_it in enumerate(ids) if is_it), None)


def _shards_to_search(shards: Sequence[Shard], named: str | None) -> Sequence[Shard]:
    """Return the shards that may hold a sample: the one that an id names, else all."""
    by_id = [shard for shard in shards if named is not None and named.startswith(f"{shard.name}{shard.key_separator}")]
    return by_id or shards


def _short_json(raw: bytes, most: int | None = _MAX_STRING_CHARS) -> str:
    """Indent JSON and shorten its long strings; return anything else unchanged."""
    try:
        return json.dumps(_shorten_strings(parse_sample_json(raw), most), indent=2, ensure_ascii=False)
    except Skip:
        text = raw.decode(errors="replace")
        return text if most is None or len(text) <= 4 * most else f"{text[: 4 * most]}…"


def _shorten_strings(value: Any, most: int | None) -> Any:
    if isinstance(value, str) and most is not None and len(value) > most:
        return f"{value[:most]}… ({len(value):,} characters)"
    if isinstance(value, dict):
        return {key: _shorten_strings(item, most) for key, item in value.items()}
    return [_shorten_strings(item, most) for item in value] if isinstance(value, list) else value


def sample_view(sample: ReadSample, sample_id: str, template: Template | None = None) -> MemberView:
    """Return a sample in the form that a terminal shows. `template`: makes its tokens; None: no tokens are shown."""
    media = [
        MediumView(part.kind, part.name, KINDS[medium.kind].size(medium), medium.num_frames, part.size)
        for part, medium in zip(sample.parts, sample.media, strict=True)
    ]
    turns, weight = turns_of(sample.messages), sample.options.weight
    view = MemberView(sample_id, media_type(sample.kinds), None, None, None, turns, media, weight=weight)
    if template is None:
        return view
    try:
        (tokens,) = template.member_tokens([Sample(sample.timed_messages, sample.media, sample.tools, sample.options)])
        return add_tokens_to_view(view, tokens, token_decoder_of(template))
    except Skip as skip:
        return replace(view, refused=str(skip))
