"""Prepare a dataset that packs while it loads: run the stages of packing up to the plan, and keep them in the cache.

config ──► index ──► measure ──► plan ──► <cache>/lazy/<identity>: rows of all items, plans by epoch, skipped.jsonl
"""

import atexit
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from energon_pack.config import PackConfig, Stage, plain
from energon_pack.config.compose import config_of
from energon_pack.config.output_dir import cache_folder
from energon_pack.dataset.energon import manifest_of
from energon_pack.dataset.files import LEDGER
from energon_pack.dataset.in_folder import InFolder, refuse_unwritable_folder
from energon_pack.dataset.lost_samples import dropped, lost_too_much
from energon_pack.dataset.plan_file import write_ledger
from energon_pack.errors import PackError, SamplesLost
from energon_pack.lengths.measure import without_wrong_shortcut
from energon_pack.online.given import Given, MapStyle
from energon_pack.online.measure import measure_given
from energon_pack.online.rows import MeasuredItem, Rows, write_measured
from energon_pack.online.samples import MeasuredGiven, MeasuredInFiles, Members
from energon_pack.plan.items import Lengths
from energon_pack.plan.settings import CUTTING
from energon_pack.plan.splits import split_shares
from energon_pack.run.executors import Executor
from energon_pack.run.executors.local import LocalExecutor
from energon_pack.run.files import make_once, one_of_machine
from energon_pack.run.progress import Progress
from energon_pack.sources.shard import Source
from energon_pack.stages.measuring import Measured, index_source, measure_source, prepare_method
from energon_pack.stages.pack_run import PackRun, begin_run
from energon_pack.stages.planning import Planned, plan_source
from energon_pack.steps.topology import Topology
from energon_pack.templates.processor import load_saved
from energon_pack.templates.settings import Expand
from energon_pack.templates.template import Template

Result = TypeVar("Result")
_ROWS = "rows.arrow"


@dataclass(frozen=True)
class Prepared:
    """A plan, and the folder from which a loader's workers read its items."""

    config: PackConfig
    planned: Planned
    samples: Members
    folder: Path
    micro_batches: int  # `packing.topology.micro_batches`

    @property
    def made(self) -> dict[str, Any]:
        """The content that energon_pack.json would have."""
        planned = self.planned
        return manifest_of(planned.lengths, planned.plan, planned.method.identity, planned.cost, planned.content)

    @property
    def template(self) -> Template:
        """The template with which all samples were measured."""
        return load_saved(self.planned.method.template_folder)


def prepare(settings: PackConfig | Sequence[str], conversations: MapStyle | None, fingerprint: str | None) -> Prepared:
    """Index, measure and plan whatever is not in the cache yet.

    If several processes of a machine call this, one of them works and the others wait for its result.

    Args:
        settings: a config, or overrides as on the command line.
        conversations: a dataset in place of `source.path`.
        fingerprint: identifies `conversations`; None: Hugging Face's own fingerprint, else nothing is kept.

    Raises:
        PackError: the errors of packing; no sample is left to pack; more samples are lost than `max_skipped`.
    """
    config = config_of(settings)
    source, packing = config.source, config.packing
    if conversations is not None and packing.overlong in CUTTING:
        raise PackError(f"packing.overlong={packing.overlong.value}: only samples in files are cut, not conversations")
    if conversations is not None and config.labels.expand is not Expand.none:
        raise PackError(f"labels.expand={config.labels.expand.value}: only samples in files are expanded")
    if conversations is not None and source.path is not None:
        raise PackError(f"source.path={source.path} and conversations: give one of them")
    packing.check_in_training()
    alone = replace(packing, topology=Topology())  # the sampler makes steps even
    config = replace(config, stage=Stage.plan, packing=alone, output=replace(config.output, name="lazy"))
    known = fingerprint or getattr(conversations, "_fingerprint", None)
    executor = LocalExecutor(config.executor.num_workers, runs_script=False)
    if conversations is None:
        run = replace(begin_run(config, executor, Progress()), mirror=None)
        mixture = run.source.mixture
        if late := next((entry for entry in mixture.entries if entry.phase > 1), None) if mixture else None:
            raise PackError(f"mixture: {late.name} has phase={late.phase}: phases are for packs on disk")
    else:
        run = in_memory(config, executor)
        run = run if known else replace(run, cache_dir=_for_this_process())
    given = None if conversations is None else Given(conversations, source.reading, source.media_root, source.limit)
    with one_of_machine(run.cache()), executor:
        indexed = index_source(run)
        method = prepare_method(run)
        if given is None:
            measured = measure_source(run, indexed, method)
        else:
            with run.timed("lengths"):
                num_workers = config.executor.num_workers
                shard, method = without_wrong_shortcut(
                    lambda method: measure_given(given, known or "once", method, run, num_workers), method
                )
                flavor, shares = config.output.packed_flavor(), split_shares(plain(config.output.splits))
                lengths = Lengths([shard], flavor, shares, config.seed, untrained=config.labels.untrained)
            measured = Measured(lengths, method, given.num_found, 0)
        planned = plan_source(run, measured)
        folder = run.cache("lazy", planned.identity[:24])
        with run.timed("rows"):
            make_once(folder / "once", lambda made: _write(made, planned, config))
    if why := lost_too_much(planned.report, config.max_skipped) or dropped(planned.report, packing):
        raise SamplesLost(f"{why}; {_where(folder / 'once' / LEDGER, given is not None, known)}")
    shards, rows = [item.shard for item in indexed], Rows(folder / "once" / _ROWS, MeasuredItem)
    samples = MeasuredInFiles(shards, planned.method.read, rows) if given is None else MeasuredGiven(given, rows)
    return Prepared(config, planned, samples, folder, packing.topology.micro_batches)


def _where(skipped: Path, is_given: bool, known: str | None) -> str:
    """Name the first skipped sample and the ledger, for an error.

    Args:
        is_given: whether the samples are conversations, not files.
        known: the fingerprint of the conversations; None: the ledger is deleted when this process ends.
    """
    with open(skipped, encoding="utf-8") as file:
        entry = json.loads(file.readline())
    first = f"the first: {entry['sample_id']}: {entry['reason']}: {entry['detail']}"
    if is_given and known is None:
        return first
    kept = f" (kept for fingerprint={known!r}: if items were changed, give another one)" if is_given else ""
    return f"{first}; {skipped} names each{kept}"


def in_memory(config: PackConfig, executor: Executor) -> PackRun:
    """Begin a run without source files.

    Raises:
        PackError: a setting draws from files; the cache can't be written.
    """
    for name in ("split", "map"):
        if (value := getattr(config.source, name)) is not None:
            raise PackError(f"source.{name}={value}: only for files; pass just the conversations you want to pack")
    cache = cache_folder(config.cache_dir, config.output.dir)
    refuse_unwritable_folder("cache_dir" if config.cache_dir else "output.dir", cache)
    return PackRun(
        executor=executor,
        progress=Progress(),
        cache_dir=cache,
        config=config,
        source=Source([], frozenset()),
        processor=config.model.named_processor(),
        destination=InFolder(cache),
    )


def _write(folder: Path, planned: Planned, config: PackConfig) -> None:
    write_measured(folder / _ROWS, planned.lengths)
    write_ledger(folder / LEDGER, planned.lengths, planned.plan, config.packing)


def _for_this_process() -> Path:
    """Make a cache folder that this process deletes at its end, for a dataset without a fingerprint."""
    folder, process = Path(tempfile.mkdtemp(prefix="energon_pack-")), os.getpid()

    def remove() -> None:
        if os.getpid() == process:  # not at the end of a forked worker
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder
