"""Try a source before it is packed: `energon-pack try PATH model.processor=FOLDER`

    form ─► five samples as they are trained ─► what would be lost ─► the pack length to choose ─► the next commands

Some thousand samples are measured, spread over the source. Nothing is published.
"""

import argparse
import math
import os
import re
import shlex
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from energon_pack.config import PackConfig
from energon_pack.config.compose import compose_config
from energon_pack.config.stage_settings import StageSettings
from energon_pack.errors import PackError, SamplesLost, amount
from energon_pack.inspect.source import print_rejected_side, read_sample_to_show
from energon_pack.inspect.trial_run import (
    TrialRun,
    find_settings_losing_less,
    lost_sample_examples,
    note_useless_setting,
    print_cut_off_tokens,
    print_lost_samples,
    settings_that_allow_lost_samples,
    why_would_not_publish,
)
from energon_pack.lengths.index import every_nth_sample
from energon_pack.plan.items import Lengths
from energon_pack.plan.pack_lengths import TriedLength, try_pack_lengths
from energon_pack.plan.settings import CUTTING_POLICIES
from energon_pack.report.advice import advise_to_shrink_media, length_advice, lengths_to_try_if_unset, recommend_length
from energon_pack.report.contact_sheet import read_lengths_rows
from energon_pack.report.pages.html import share_of_samples
from energon_pack.report.terminal_summary import print_tried_lengths
from energon_pack.report.views.screens import member_blocks, print_blocks, print_heading
from energon_pack.report.views.text import SentenceBlock
from energon_pack.run.command import EXIT_CODES, make_tool_parser, positive_int, run_tool
from energon_pack.run.console import say
from energon_pack.run.executors import Executor
from energon_pack.run.files import user_cache_folder
from energon_pack.run.progress import Progress
from energon_pack.run.workshop import executor_of
from energon_pack.samples.media.kinds import MEDIA_TYPES
from energon_pack.samples.skip import setting_word
from energon_pack.sources.mixture import make_default_entry_name
from energon_pack.sources.reader import SourceReader
from energon_pack.sources.shard import Shard
from energon_pack.sources.source_path import source_summary
from energon_pack.sources.storage import path_in
from energon_pack.stages import measuring
from energon_pack.stages.places import prepare_places
from energon_pack.stages.planning import plan_source
from energon_pack.steps.cost import read_context_len
from energon_pack.templates.processor import load_saved_template, media_rules_of, processor_folder_of
from energon_pack.templates.template import Template

_MAX_MEASURED_FILES = 64
_MAX_MEASURED_SAMPLES = 10_000
_NUM_SHOWN_SAMPLES = 5
_MAX_CHARS = 600  # of the text of a sample
_STAGE_NAMES = "index", "processor", "lengths", "plan"
_EXAMPLES = (
    "/data/FineVision model.processor=/models/Qwen3-VL-8B-Instruct",
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
    arguments = _arguments()
    with tempfile.TemporaryDirectory(prefix="energon_pack_try_") as folder:

        def config_with(cures: Sequence[str] = ()) -> PackConfig:
            config = compose_config([*arguments.overrides, *cures])
            output = replace(config.output, dir=folder, name="try")
            source = replace(config.source, path=arguments.path)
            return replace(config, output=output, source=source, cache_dir=config.cache_dir or _user_cache() or folder)

        with executor_of(config_with().executor) as executor:

            def measure(cures: Sequence[str] = (), is_first: bool = False) -> TrialRun:
                return _measure_spread_samples(config_with(cures), executor, arguments, is_first)

            _try_source(arguments, measure(is_first=True), measure)
    return 0


def _user_cache() -> str | None:
    """Return the folder in the user's cache that a later `try` uses again; None: it can't be written."""
    folder = user_cache_folder("try", "")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return str(folder) if os.access(folder, os.W_OK) else None


def _measure_spread_samples(
    config: PackConfig, executor: Executor, arguments: argparse.Namespace, is_first: bool = False
) -> TrialRun:
    """Measure `--num-samples` samples at most, spread over the source. `is_first`: print what the source is read as."""
    places = prepare_places(config)
    source, workshop = places.source, places.workshop(executor, Progress(_STAGE_NAMES))
    settings = StageSettings.of(config, source, places.processor)
    shards = _choose_evenly(source.shards, _MAX_MEASURED_FILES)
    indexed = measuring.index_source(shards, settings.method.keep_damaged, config.seed, workshop)
    num_rows = sum(item.num_rows for item in indexed)
    if is_first:
        say(f"read as: {source_summary(source, num_rows if shards == [*source.shards] else None)}")
    if not num_rows:
        raise PackError(f"{arguments.path}: no sample in {amount(len(shards), 'file')}")
    step = math.ceil(num_rows / arguments.num_samples)
    method = measuring.prepare_measuring_method(settings.method, workshop)
    chosen = every_nth_sample(step, indexed) if step > 1 else indexed
    measured = measuring.measure_source(source, chosen, method, settings.lengths, workshop)
    folder = measured.method.template_folder
    lens, positions = config.report.lens, read_context_len(processor_folder_of(folder))
    tried = lengths_to_try_if_unset(lens, config.packing, measured.lengths.items, positions)
    share = len(shards) / len(source.shards) / step
    choices = try_pack_lengths(measured.lengths, config.packing, tried, positions)
    choices = replace(choices, lens=[row.scaled(1 / share) for row in choices.lens])
    best = recommend_length(choices.lens)
    return TrialRun(
        config=config,
        settings=settings,
        workshop=workshop,
        num_files=len(source.shards),
        measured=measured,
        sample_every=step,
        sample_share=share,
        choices=choices,
        best=best and best.choice,
        shrink_advice=advise_to_shrink_media(measured.lengths, media_rules_of(folder), tried),
    )


def _try_source(arguments: argparse.Namespace, tried: TrialRun, measure: Callable[[Sequence[str]], TrialRun]) -> None:
    """Print what a source comes to. `tried`: a run with the given settings; `measure`: makes one with more of them."""
    config, lengths = tried.config, tried.measured.lengths
    most = None if arguments.full else _MAX_CHARS
    _show_samples(tried.settings, lengths, load_saved_template(tried.measured.method.template_folder), most)
    examples = lost_sample_examples(lengths, config.packing)
    better, cures, useless = find_settings_losing_less(tried, measure)
    cured = better[-1] if better else tried
    print_heading("── what would be lost")
    print_lost_samples(
        lengths, {why: (name, note_useless_setting(text, useless)) for why, (name, text) in examples.items()}
    )
    if config.packing.overlong in CUTTING_POLICIES:
        planned = plan_source(tried.measured, tried.settings.plan, tried.workshop)
        print_cut_off_tokens(planned.report, config.packing)
    if not (cured.measured.lengths.items.lens > 0).any():
        raise SamplesLost(f"{arguments.path}: no sample can be packed: what would be lost, above, says why")
    print_heading("── the pack length to choose")
    if tried.sample_share < 1:
        some = f"{min(tried.num_files, _MAX_MEASURED_FILES):,} of {amount(tried.num_files, 'file')}"
        say(f"measured: 1 sample in {tried.sample_every:,}, of {some}")
    advice = [str(tried.shrink_advice)] if tried.shrink_advice else []
    print_tried_lengths(tried.choices, advice)
    if cures:
        say(f"with {' '.join(cures)}, measured again: {cured.num_lost_to_bad_data:,} lost; of these lengths:")
        later_advice = dict.fromkeys(str(run.shrink_advice) for run in better if run.shrink_advice)
        print_tried_lengths(cured.choices, [text for text in later_advice if text not in advice])
    if cured.best is None:
        raise PackError("report.lens: every sample is longer than all of them")
    say(length_advice(cured.choices.lens))
    lens = cured.measured.lengths.items.lens
    per_pack = np.count_nonzero((lens > 0) & (lens <= cured.best.max_token_len)) / cured.sample_share / cured.best.packs
    say(f"a pack holds {per_pack:.1f} samples on average: divide your batch size by that to keep the samples of a step")
    print_heading("── next")
    allowed = settings_that_allow_lost_samples(cured.measured.lengths, config.max_skipped)
    _print_next_commands(arguments, cured.best, [*cures, *allowed])
    without = "".join(f" without {setting}" for setting in allowed)
    for state, run in ((f"with {' '.join(cures)}, too,", cured), (f"without {' '.join(cures)}", tried)):
        lengths = run.measured.lengths
        if why := why_would_not_publish(lengths, run.choices, run.best, config.packing, config.max_skipped):
            raise SamplesLost(f"{why}: {state if cures else 'so'} nothing would be published{without}")


def _choose_evenly(shards: Sequence[Shard], most: int) -> list[Shard]:
    """Return at most `most` of the files, at even steps."""
    if len(shards) <= most:
        return [*shards]
    return [shards[number * len(shards) // most] for number in range(most)]


def _show_samples(settings: StageSettings, lengths: Lengths, template: Template, most: int | None) -> None:
    """Print some samples as training gets them, each with the reason for which `_samples_to_show` chose it.

    `most`: characters of the text of each; None: all.
    """
    numbers = _samples_to_show(lengths)
    print_heading("── as they are trained: what counts is green, or «so»")
    rows = {place: (shard, row) for place, shard, row, _ in read_lengths_rows(lengths, np.array([*numbers]))}
    with SourceReader() as reader:
        for place, kind in enumerate(numbers.values()):
            looked = read_sample_to_show(settings, reader, *rows[place], template)
            print_heading(f"{looked.view.sample_id}  ({kind})")
            print_blocks(SentenceBlock(remark, "bad") for remark in looked.remarks)
            print_blocks(member_blocks(looked.view), most)
            print_rejected_side(looked, most)


def _samples_to_show(lengths: Lengths) -> dict[int, str]:
    """Choose up to five samples: the longest, one of the rarest kind, some by even steps; number → why it is shown."""
    items, lens = lengths.items, lengths.sample_lens
    measured = np.flatnonzero(lens[: lengths.num_samples] > 0)
    if not len(measured):
        return {}
    codes = items.dataset[measured].astype(np.int64) * len(MEDIA_TYPES) + items.media[measured]
    kinds, kind, counts = np.unique(codes, return_inverse=True, return_counts=True)
    in_order = np.lexsort((lens[measured], kind))  # by kind, then by length
    steps = (np.array([5, 1, 9, 3, 7]) * len(measured) // 10).tolist()
    special = {int(lens[measured].argmax()): "the longest"}
    if len(kinds) > 1:
        special.setdefault(int(np.flatnonzero(kind == counts.argmin())[0]), "of the rarest kind")
    chosen = dict.fromkeys([*special, *in_order[steps].tolist()])
    return {
        int(measured[place]): ", ".join(
            (share_of_samples(int(counts[kind[place]]), len(measured), MEDIA_TYPES[items.media[measured[place]]]), *why)
        )
        for place in islice(chosen, _NUM_SHOWN_SAMPLES)
        for why in [[special[place]] if place in special else []]
    }


def _print_next_commands(arguments: argparse.Namespace, chosen: TriedLength, more: Sequence[str]) -> None:
    """Print the command that packs, with `more` settings, and those that train."""
    settings = dict(override.split("=", 1) for override in arguments.overrides)
    name = settings.get("output.name") or _dataset_name(arguments.path)
    named = [] if "output.name" in settings else [f"output.name={name}"]
    length = f"packing.max_token_len={chosen.max_token_len}"
    source, rest = setting_word("source.path", arguments.path), [*arguments.overrides, *more, *named, length]
    say(f"energon-pack {source} {shlex.join(rest)}")
    dataset = path_in(settings.get("output.dir", "packed"), name)
    processor = settings.get("model.processor", "PROCESSOR_FOLDER")
    say("python -m energon_pack.recipes .        # trainings to read and adapt")
    say(f"python -m energon_pack.recipes tiny {shlex.quote(processor)} tiny        # a random model; or take yours:")
    if "source.take=both" in rest:  # trainings for samples alone refuse pairs
        say(f"python recipes/reference_logps.py {shlex.quote(dataset)} reference.npz --model tiny")
        say(f"python recipes/train_preference.py {shlex.quote(dataset)} reference.npz --model tiny --max-steps 1")
        return
    say(f"torchrun recipes/train_ddp.py {shlex.quote(dataset)} --model tiny --save checkpoints --max-steps 1")
    for trainer, name in _RECIPES.items():
        say(f"  {trainer:24}recipes/{name}")


def _dataset_name(path: str) -> str:
    """Return a name for the dataset packed from a source: its file's or folder's name, without odd characters."""
    return re.sub(r"\W+", "_", make_default_entry_name(path.rstrip("/"))).strip("_") or "mine"


def _arguments() -> argparse.Namespace:
    about = "See what a source holds, what would be lost of it, and which pack length fits, before anything is packed."
    codes = {SamplesLost.exit_code: EXIT_CODES[SamplesLost.exit_code].replace("was published", "would be published")}
    tool = make_tool_parser("try", "PATH model.processor=FOLDER [OVERRIDES]", about, _EXAMPLES, codes)
    tool.add_argument("path", metavar="PATH", help="a folder, a file, a glob, or an address")
    tool.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as of `energon-pack`")
    most = f"samples that are measured (default {_MAX_MEASURED_SAMPLES:,})"
    tool.add_argument("-n", "--num-samples", type=positive_int, default=_MAX_MEASURED_SAMPLES, metavar="N", help=most)
    tool.add_argument("--full", action="store_true", help="do not shorten the texts of samples")
    return tool.parse_intermixed_args()


if __name__ == "__main__":
    run_tool("try", main)
