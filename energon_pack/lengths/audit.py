"""Compares the tokens of some samples with those of transformers' full processor, which decodes, resizes and tokenizes.

The samples are drawn at random, also from those whose lengths come from the cache. If the full processor agreed with
these very lengths before, it is not asked again: importing it takes seconds, and writing makes the ids of every sample.

The audit runs in its own process while the packs are written. A single difference stops the run before anything is
published. Most full processors need torchvision; without it, only samples of text are checked.
"""

import json
import math
import re
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from energon_pack.errors import PackError, amount, one_line
from energon_pack.lengths.measure import LengthsWrong, MeasuredShard
from energon_pack.lengths.method import Method
from energon_pack.lengths.table_cache import Chunk, chunks_of_pieces, key_of
from energon_pack.run.files import write_atomically
from energon_pack.run.packages import faster_imports
from energon_pack.run.workshop import Workshop
from energon_pack.samples.media.kinds import KINDS
from energon_pack.samples.media.prepared import prepare_media_for_processor, processor_arguments
from energon_pack.samples.media.streams import UndecodableError
from energon_pack.samples.member import MediumInput
from energon_pack.samples.sample import AnyPart
from energon_pack.samples.skip import Skip
from energon_pack.sources.reader import SourceReader, whole_medium_range
from energon_pack.sources.sample import read_measured_sample
from energon_pack.sources.shard import Shard
from energon_pack.sources.source_file import MeasuredRow, rows_of
from energon_pack.templates.full_processor import load_full_processor, prepare_torchvision
from energon_pack.templates.processor import load_saved_template
from energon_pack.templates.processor_inputs import full_processor_ids, remove_final_end_token
from energon_pack.templates.sample import Sample
from energon_pack.templates.template import Template
from energon_pack.templates.trial import feature_difference, token_difference

_JOB_SAMPLES = 2000  # the full processor takes about half a minute for them

#: Drawn rows of a chunk of lengths, and the shards of that chunk by their numbers.
DrawnRows = tuple[dict[int, Shard], Chunk, list[int]]


@dataclass(frozen=True)
class AuditJob:
    """The samples that one worker compares with the full processor, and the method that measured them."""

    rows: list[DrawnRows]
    method: Method


@dataclass(frozen=True)
class AuditResult:
    """The result of an audit: how many samples the full processor confirmed, and the first one that it did not."""

    num_checked: int
    num_unchecked: int
    #: the reasons why some samples could not be checked
    note: str = ""
    #: the first sample that differs: its id and both lengths
    difference: str = ""
    #: True: it is the result of an earlier run
    is_known: bool = False
    #: samples with a medium that can't be decoded though its file begins and ends well, and the error of the first one
    num_undecodable: int = 0
    undecodable: str = ""

    def lines(self) -> list[str]:
        """Return the lines that a run prints about its audit at the end."""
        lines = []
        if self.num_checked:
            when = " before" * self.is_known
            lines.append(f"verified: {amount(self.num_checked, 'sample')} in the full processor{when}, none differs")
        if self.num_unchecked:
            lines.append(f"not verified: {amount(self.num_unchecked, 'sample')} with media: {self.note}")
        if self.num_undecodable:
            lines.append(
                f"not verified: {amount(self.num_undecodable, 'sample')} with a medium that is damaged within, as"
                f" {self.undecodable}: training leaves them out with on_bad_member=drop, and ends there without"
            )
        return lines


def draw_samples_to_audit(measured: Sequence[MeasuredShard], share: float, seed: int) -> list[DrawnRows]:
    """Draw a random `share` (0 to 1) of the measured samples, rounded up to a whole one; equal seeds draw the same."""
    chunks = [*chunks_of_pieces([*enumerate([item.pieces for item in measured])])] if share else []
    ends = np.cumsum([chunk.read(["reason"])["reason"].null_count for chunk in chunks])
    number = math.ceil(ends[-1] * share) if chunks else 0
    if not number:
        return []
    chosen = np.sort(np.random.default_rng(seed).choice(ends[-1], number, replace=False))
    of_chunks = np.split(chosen, np.searchsorted(chosen, ends[:-1]))
    drawn = []
    for chunk, places, start in zip(chunks, of_chunks, [0, *ends], strict=False):
        if len(places):
            with_length = np.flatnonzero(chunk.read(["reason"])["reason"].is_null().to_numpy())
            shards = {number: measured[number].shard for number in chunk.numbers}
            drawn.append((shards, chunk, with_length[places - start].tolist()))
    return drawn


def result_file(result_name: str, measured: Sequence[MeasuredShard], method: Method, share: float, seed: int) -> Path:
    """Return the file for what `result_name` says of the samples that `draw` draws; it exists if that is known."""
    pieces = [(Path(piece.path).name, piece.first_row, piece.num_rows) for item in measured for piece in item.pieces]
    return Path(method.template_folder, f"{result_name}-{key_of(pieces, share, seed)}.json")


@dataclass(frozen=True)
class StartedAudit:
    """An audit that was started: it runs in another process, or its result is known from an earlier run."""

    method: Method
    result_file: Path  # the file for its result
    future: "Future[AuditResult] | AuditResult"
    other_jobs: Sequence[AuditJob] = ()  # for all workers


def start(
    measured: Sequence[MeasuredShard], method: Method, share: float, seed: int, workshop: Workshop
) -> StartedAudit:
    """Start to compare a random `share` (0 to 1) of the samples with the full processor; return before it is done.

    Another process compares the first of them; `finish` does the rest. A saved result for these lengths is reused.
    """
    kept = result_file("audit", measured, method, share, seed)
    if kept.exists():
        return StartedAudit(method, kept, AuditResult(**{**json.loads(kept.read_bytes()), "is_known": True}))
    jobs = [AuditJob(part, method) for part in _split_into_jobs(draw_samples_to_audit(measured, share, seed))]
    return StartedAudit(
        method,
        kept,
        workshop.executor.start(compare_with_full_processor, jobs[0]) if jobs else AuditResult(0, 0),
        jobs[1:],
    )


def _split_into_jobs(rows: Sequence[DrawnRows]) -> list[list[DrawnRows]]:
    """Split the drawn rows into the jobs of an audit, of about `_JOB_SAMPLES` samples each."""
    parts: list[list[DrawnRows]] = []
    num = _JOB_SAMPLES
    for drawn in rows:
        if num >= _JOB_SAMPLES:
            parts.append([])
            num = 0
        parts[-1].append(drawn)
        num += len(drawn[2])
    return parts


def finish(auditing: StartedAudit, workshop: Workshop) -> AuditResult:
    """Wait for the audit that `start` began, compare the remaining samples in all workers, and save the result.

    Raises:
        LengthsWrong: a length differs.
        PackError: the process of the audit was killed, or is stuck.
    """
    if isinstance(auditing.future, AuditResult):
        return auditing.future
    result = workshop.executor.result(auditing.future)
    for more in workshop.executor.map(compare_with_full_processor, () if result.difference else auditing.other_jobs):
        result = replace(
            more,
            num_checked=result.num_checked + more.num_checked,
            num_unchecked=result.num_unchecked + more.num_unchecked,
            num_undecodable=result.num_undecodable + more.num_undecodable,
            undecodable=result.undecodable or more.undecodable,
        )
        if more.difference:
            break
    if result.difference:
        template = load_saved_template(auditing.method.template_folder)
        raise LengthsWrong(
            f"measure.verify: {result.difference}, by model.template={template.spec.family} with"
            f" {template.rules.settings}; nothing is published, +model=auto asks the processor itself"
        )
    if not result.num_undecodable:
        write_atomically(auditing.result_file, json.dumps(asdict(result)).encode())
    return result


def compare_with_full_processor(job: AuditJob) -> AuditResult:
    """Compare the samples of a job with the full processor, up to the first that differs; runs in a worker process."""
    template = load_saved_template(job.method.template_folder)
    processor, note = _full_processor(template)
    num_checked = num_unchecked = 0
    undecodable: list[str] = []
    for shards, chunk, indices in job.rows:
        numbers = chunk.owners_of_rows[indices].tolist()
        rows = rows_of(chunk.read().take(indices), MeasuredRow)
        samples = [(shards[number], row) for number, row in zip(numbers, rows, strict=True)]
        checked = [(shard, row) for shard, row in samples if not (row.parts and note)]
        num_unchecked += len(samples) - len(checked)
        with SourceReader() as reader:
            for shard, row in reader.iterate_with_read_ahead(checked, lambda one: [one], whole_medium_range):
                try:
                    difference = _difference(processor, template, reader, shard, row, job)
                except UndecodableError as error:
                    undecodable.append(f"{shard.sample_id(row.key)} ({error})")
                    continue
                if difference:
                    return AuditResult(num_checked, num_unchecked, note, f"{shard.sample_id(row.key)} has {difference}")
                num_checked += 1
    names = len(undecodable), next(iter(undecodable), "")
    return AuditResult(num_checked, num_unchecked, note, "", False, *names)


def _full_processor(template: Template) -> tuple[Any, str]:
    """Return the full processor and "", or only its tokenizer and the reason why the processor can't be loaded."""
    settings = template.spec.processor
    with faster_imports():
        prepare_torchvision()
        from transformers import AutoTokenizer
        from transformers.utils import logging

        logging.set_verbosity_error()
        try:
            return load_full_processor(settings), ""
        except ImportError as error:
            note = missing_package_text(error)
    return AutoTokenizer.from_pretrained(settings.folder, **settings.kwargs), note


def missing_package_text(error: ImportError) -> str:
    """Return which package a full processor needs, with `pip install`, or else the text of the error of its import."""
    text = " ".join(str(error).split())
    if name := re.search(r"requires the (\w+) library", text):
        return f"the full processor needs {name[1].lower()} (pip install {name[1].lower()})"
    return text[:120]


def _difference(
    processor: Any, template: Template, reader: SourceReader, shard: Shard, row: MeasuredRow, job: AuditJob
) -> str:
    """Return how the tokens of one sample differ from those that were measured; empty: they do not."""
    try:
        read = read_measured_sample(reader, shard, row, job.method.read)
        sample = Sample(read.timed_messages, read.media, read.tools, read.options)
        rendered = template.render(sample)
        (encoded,) = template.tokens_of([sample], [rendered], job.method.engine)
        measured_ids = remove_final_end_token(template, rendered, encoded.ids.tolist())
        measured_len = row.token_len - len(encoded.ids) + len(measured_ids)
        data = [reader.read(shard, part) for part in read.parts]
        ids = _full_processor_ids(processor, template, sample, encoded.media, read.parts, data)
    except (PackError, UndecodableError):  # the source changed; a medium is damaged
        raise
    except Skip as skip:
        return f"no ({skip}) tokens in the full processor, {row.token_len} as measured"
    except Exception as error:  # the processor refuses a sample that was measured: that is a difference
        return f"no ({one_line(error, 160)}) tokens in the full processor, {row.token_len} as measured"
    if len(ids) != measured_len:
        return f"{len(ids)} tokens in the full processor, {measured_len} as measured"
    if ids != measured_ids:
        return f"other tokens: {token_difference(measured_ids, ids)}"
    if features := feature_difference(template, encoded.media, ids):
        return features
    num_visual = sum(medium.num_features for medium in encoded.media if KINDS[medium.kind].is_visual)
    is_same = num_visual == row.num_visual_tokens
    return "" if is_same else f"{num_visual} tokens that wait for visual features, {row.num_visual_tokens} as measured"


def _full_processor_ids(
    processor: Any,
    template: Template,
    sample: Sample,
    media: Sequence[MediumInput],
    parts: Sequence[AnyPart],
    data: Sequence[bytes],
) -> list[int]:
    """Return the tokens that the full processor makes of one sample."""
    loaded = [KINDS[m.kind].loaded(d, part.name) for m, d, part in zip(sample.media, data, parts, strict=True)]
    try:
        prepared = prepare_media_for_processor(template.input_rules, media, loaded)
    except OSError as error:  # of an image
        raise UndecodableError(one_line(error, 160)) from None
    first, end = sample.options.token_range or (0, None)
    arguments = processor_arguments(template.input_rules, prepared)
    return full_processor_ids(processor, template, sample, arguments)[first:end]
