"""Try a source before it is packed: `energon-pack try PATH +model=MODEL`

    form ─► five samples as they are trained ─► what would be lost ─► the pack length to choose ─► the next commands

Some thousand samples are measured, spread over the source. Nothing is published.
"""

import argparse
import math
import os
import re
import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from energon_pack.config import PackConfig
from energon_pack.config.compose import compose_config
from energon_pack.dataset.lost_samples import dropped
from energon_pack.dataset.plan_file import ledger
from energon_pack.errors import PackError, amount
from energon_pack.inspect.source import index_shard, look
from energon_pack.lengths.index import IndexedShard, every
from energon_pack.plan.items import Lengths
from energon_pack.plan.pack_lengths import Choice, try_lengths
from energon_pack.plan.packs import no_plan
from energon_pack.plan.report import Report
from energon_pack.plan.settings import CUTTING
from energon_pack.report.printed import part_lines, print_choices
from energon_pack.report.views.screens import member_blocks, print_blocks, print_heading
from energon_pack.report.views.text import Line
from energon_pack.run.command import count, parser, run
from energon_pack.run.console import say
from energon_pack.run.context import executor_of
from energon_pack.run.progress import Progress
from energon_pack.run.user_cache import user_folder
from energon_pack.sources.described import read_as
from energon_pack.sources.mixture import stem_of
from energon_pack.sources.reader import Reader
from energon_pack.sources.shard import Shard, Source
from energon_pack.sources.storage import path_in
from energon_pack.stages import measuring
from energon_pack.stages.pack_run import PackRun, begin_run
from energon_pack.stages.planning import plan_source
from energon_pack.steps.cost import most_positions
from energon_pack.templates.processor import folder_of, load_saved
from energon_pack.templates.template import Template

_MOST_FILES = 64
_MOST_SAMPLES = 10_000
_SHOWN = 5
_CHARS = 600  # of the text of a sample
#: share of the samples that the suggested pack length may drop
_MOST_DROPPED = 0.001
_STAGES = "index", "processor", "lengths", "plan"
_EXAMPLES = (
    "/data/FineVision +model=qwen3_vl model.processor=/models/Qwen3-VL-8B-Instruct",
    "train.jsonl +model=qwen2_5_vl source.media_root=images",
)
_RECIPES = {
    "Megatron-LM": "megatron_lm.py",
    "Megatron-Bridge": "megatron_bridge.py",
    "transformers' Trainer": "train_trainer.py",
    "plain PyTorch": "train_ddp.py",
}


def main() -> int:
    """Run the command; return its exit code."""
    given = _arguments()
    config = compose_config(given.overrides)
    with tempfile.TemporaryDirectory(prefix="energon_pack_try_") as folder:
        cache_dir = config.cache_dir or _kept() or folder
        output = replace(config.output, dir=folder, name="try")
        source = replace(config.source, path=given.path)
        config = replace(config, output=output, source=source, cache_dir=cache_dir)
        with executor_of(config.executor) as executor:
            _try(begin_run(config, executor, Progress(_STAGES)), given)
    return 0


def _kept() -> str | None:
    """Return the user's cache, for the next `try` of the same processor and files; None: it can't be written."""
    folder = user_folder("try", "")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return str(folder) if os.access(folder, os.W_OK) else None


def _try(run: PackRun, given: argparse.Namespace) -> None:
    config, source = run.config, run.source
    shards = _spread(source.shards, _MOST_FILES)
    indexed = measuring.index_source(run, shards)
    num_rows = sum(item.num_rows for item in indexed)
    is_whole = len(shards) == len(source.shards)
    say(f"read as: {read_as(source, config.source.reading, num_rows if is_whole else None)}")
    if not num_rows:
        raise PackError(f"{given.path}: no sample in {amount(len(shards), 'file')}")
    step = math.ceil(num_rows / given.num_samples)
    indexed = every(step, indexed) if step > 1 else indexed
    try:
        method = measuring.prepare_method(run)
    except PackError as error:  # samples are shown without a processor, too
        _show_samples(config, source, indexed, None, f"no tokens: {error}")
        raise
    _show_samples(config, source, indexed, load_saved(method.template_folder))
    measured = measuring.measure_source(run, indexed, method)
    lengths = measured.lengths
    print_heading("── what would be lost")
    _print_losses(config, lengths)
    if config.packing.overlong in CUTTING:
        _print_cuts(config, plan_source(run, measured).report)
    if not (lengths.items.lens > 0).any():
        raise PackError(f"{given.path}: no sample can be packed: what would be lost, above, says why")
    print_heading("── the pack length to choose")
    share = len(shards) / len(source.shards) / step
    if share < 1:
        say(f"measured: 1 sample in {step:,}, of {len(shards):,} of {amount(len(source.shards), 'file')}")
    positions = most_positions(folder_of(measured.method.template_folder))
    choices = try_lengths(lengths, config.packing, config.report.lens, positions)
    print_choices(replace(choices, lens=[row.scaled(1 / share) for row in choices.lens]))
    chosen = _chosen(choices.lens)
    if chosen is None:
        raise PackError("report.lens: every sample is longer than all of them")
    lens = lengths.items.lens
    gains = gains_of(lens[(lens > 0) & (lens <= chosen.max_token_len)], chosen)
    for line in _advice(gains, chosen):
        say(line)
    print_heading("── next")
    _print_next(given, chosen)


def _spread(shards: Sequence[Shard], most: int) -> list[Shard]:
    """Choose files evenly over the source."""
    if len(shards) <= most:
        return [*shards]
    return [shards[number * len(shards) // most] for number in range(most)]


def _show_samples(
    config: PackConfig,
    source: Source,
    indexed: Sequence[IndexedShard],
    template: Template | None,
    note: str | None = None,
) -> None:
    """Print some samples of the smallest file as training gets them."""
    shard = min((item.shard for item in indexed if item.num_rows), key=lambda shard: shard.size)
    rows = index_shard(source, shard).rows
    print_heading("── as they are trained: what counts is green, or «so»")
    print_blocks([Line(note, "bad")] if note else [])
    with Reader() as reader:
        for number in range(min(_SHOWN, len(rows))):
            row = rows[number * len(rows) // min(_SHOWN, len(rows))]
            looked = look(config, reader, shard, row, template)
            print_heading(looked.view.sample_id)
            print_blocks(Line(remark, "bad") for remark in looked.remarks)
            print_blocks(member_blocks(looked.view), _CHARS)


def _print_losses(config: PackConfig, lengths: Lengths) -> None:
    """Print each reason for which samples would be lost, with one of them: its detail says what to do."""
    if not lengths.reasons:
        say("nothing: every sample can be packed, if it is not longer than a pack")
        return
    examples: dict[str, str] = {}
    for entry in ledger(lengths, no_plan(lengths.items), config.packing):
        if entry["reason"] not in examples:
            examples[entry["reason"]] = f"{entry['sample_id']}: {entry['detail']}"
            if len(examples) == len(lengths.reasons):
                break
    for reason, number in sorted(lengths.reasons.items(), key=lambda item: -item[1]):
        say(f"{number:,} of {lengths.num_samples:,}  {reason}, as {examples.get(reason, '?')}")


def _print_cuts(config: PackConfig, report: Report) -> None:
    """Print what cutting loses at the pack length that is set."""
    for line in part_lines(report):
        say(f"packing.overlong={config.packing.overlong.value}, {config.packing.max_token_len:,} tokens a pack: {line}")
    if why := dropped(report, config.packing):
        say(f"nothing would be published: {why}")


def _chosen(choices: Sequence[Choice]) -> Choice | None:
    """Return the shortest pack length that drops next to nothing; else the longest that the model has positions for."""
    fit = [row for row in choices if row.packs and not row.is_beyond_model] or [row for row in choices if row.packs]
    return next((row for row in fit if row.dropped_share <= _MOST_DROPPED), fit[-1] if fit else None)


@dataclass(frozen=True)
class Gains:
    """What packing saves against batches of samples in rows of their own."""

    samples_per_pack: float
    padded_share: float  # tokens of rows padded to the longest of their batch, for one token of a pack's row


def gains_of(lens: np.ndarray, chosen: Choice, seed: int = 0) -> Gains:
    """Compare packs with batches of as many samples, drawn by chance and padded to the longest of each.

    Args:
        lens: int[num_samples] tokens of each sample that is packed.
    """
    per_pack = len(lens) / chosen.packs
    size = max(1, round(per_pack))
    order = np.random.default_rng(seed).permutation(lens)
    batches = [order[start : start + size] for start in range(0, len(order), size)]
    padded = sum(int(batch.max()) * len(batch) for batch in batches)
    return Gains(per_pack, padded / (chosen.packs * chosen.max_token_len))


def _advice(gains: Gains, chosen: Choice) -> list[str]:
    per_pack, share = gains.samples_per_pack, gains.padded_share
    tokens = f"{share:.2f} times fewer tokens" if share > 1 else f"{1 / share:.2f} times as many tokens"
    return [
        f"packing.max_token_len={chosen.max_token_len}: the shortest that drops at most {_MOST_DROPPED:.1%} of samples",
        f"against one sample a step: {per_pack:.1f} times fewer steps; against batches of"
        f" {max(1, round(per_pack)):,} padded to their longest: {tokens}",
        f"a pack holds {per_pack:.1f} samples: for as many samples a step as before, divide ranks x micro batches x"
        f" accumulation by {per_pack:.1f}",
        f"or keep the packs a step and multiply Adam's learning rate by {math.sqrt(per_pack):.1f} (square root rule,"
        f" Malladi et al. 2022), SGD's by {per_pack:.1f} (linear rule, Goyal et al. 2017)",
    ]


def _print_next(given: argparse.Namespace, chosen: Choice) -> None:
    said = dict(override.split("=", 1) for override in given.overrides)
    name = said.get("output.name") or _named(given.path)
    named = [] if "output.name" in said else [f"output.name={name}"]
    length = f"packing.max_token_len={chosen.max_token_len}"
    say(f"energon-pack {shlex.join([f'source.path={given.path}', *given.overrides, *named, length])}")
    dataset = path_in(said.get("output.dir", "packed"), name)
    processor = said.get("model.processor", "PROCESSOR_FOLDER")
    say("python -m energon_pack.recipes .        # trainings to read and adapt:")
    words = ["recipes/train_ddp.py", dataset, "--processor", processor, "--save", "checkpoints", "--max-steps", "1"]
    say(f"torchrun {shlex.join(words)}")
    for trainer, name in _RECIPES.items():
        say(f"  {trainer:24}recipes/{name}")


def _named(path: str) -> str:
    """Name the dataset of a source."""
    return re.sub(r"\W+", "_", stem_of(path.rstrip("/"))).strip("_") or "mine"


def _arguments() -> argparse.Namespace:
    what = "See what a source holds, what would be lost of it, and which pack length fits, before anything is packed."
    tool = parser("try", "PATH +model=MODEL [OVERRIDES]", what, _EXAMPLES)
    tool.add_argument("path", metavar="PATH", help="a folder, a file, a glob, or an address")
    tool.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as of `energon-pack`")
    most = f"samples that are measured (default {_MOST_SAMPLES:,})"
    tool.add_argument("-n", "--num-samples", type=count, default=_MOST_SAMPLES, metavar="N", help=most)
    return tool.parse_intermixed_args()


if __name__ == "__main__":
    run("try", main)
