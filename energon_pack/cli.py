"""Run the command line: Hydra composes the config, `pack` does the work, and a user's error is one line.

Nothing here imports torch or transformers, so that `--help` and completion answer at once.
"""

import copy
import json
import math
import os
import re
import runpy
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, NoReturn

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, flag_override
from omegaconf.errors import OmegaConfBaseException

from energon_pack.config import ExecutorKind, ModelConfig, PackConfig, SourceConfig, conf_dir, plain
from energon_pack.config.compose import hydra_error_line, load_hydra_plugins, parse_command_line
from energon_pack.config.naming import is_in_name_hash, output_name, sweeps_folder
from energon_pack.config.validate import to_config
from energon_pack.errors import PackError, refuse_password
from energon_pack.report.sweep_folder import SweepJobFile, remove_sweep_from_environment, sweep_folder
from energon_pack.run.command import (
    EXIT_CODES,
    EXIT_INTERRUPTED,
    TOOLS,
    end_process,
    exit_after_closed_pipe,
    exit_code_help_lines,
    prepare_tool_process,
    tool_help_lines,
)
from energon_pack.run.console import hold_output_under_title, print_error, say
from energon_pack.templates.models import packaged_models, read_model_config
from energon_pack.version import VERSION

#: the environment variable with the keys of a sweep, for its jobs, wherever a launcher runs them
_SWEPT_KEYS_VARIABLE = "ENERGON_PACK_SWEPT"


_MULTIRUN = ("-m", "--multirun")
_NOT_FOR_SLURM_JOBS = re.compile(
    r"\+{0,2}(executor|stage|output\.name)[.=]"
)  # settings that each job of Slurm gets by itself


class _Refusals:
    """Collects the errors of a run, or of a sweep's jobs, while the other jobs go on."""

    def __init__(self) -> None:
        self._errors: list[PackError] = []
        self._process = os.getpid()

    def add(self, error: PackError) -> None:
        """Print an error as one line on stderr; once, if all jobs of a sweep have the same error."""
        if str(error) not in map(str, self._errors):
            print_error("energon-pack: error", str(error))
        self._errors.append(error)

    @property
    def is_first_process(self) -> bool:
        """Say whether this is the process that the user started, which returns the exit code."""
        return os.getpid() == self._process

    @property
    def exit_code(self) -> int:
        return max((error.exit_code for error in self._errors), default=0)


def _run_job(composed: DictConfig, refusals: _Refusals) -> float:
    """Run one job: a single run, or one of a sweep; return `report.objective`, for a sweeper that optimises."""
    sweep = _sweep_job()
    try:
        if any(override.startswith("+model=[") for override in HydraConfig.get().overrides.task):
            raise PackError("+model takes one model; sweep over several with -m +model=A,B")
        config = to_config(composed)
        config.output.name = config.output.name or output_name(
            config, _default_config(composed), _swept_source_and_processor(config.source, config.model)
        )
        if sweep and (first := sweep.claim_or_find_same_job(*_place_and_settings(config))) is not None:
            say(f"job {HydraConfig.get().job.num}: the same as job {first}")
            return _objective(config, sweep.read_figures_of_job(first))
        figures = _pack(config, sweep, refusals.is_first_process)
        return _objective(config, figures) if sweep else math.nan
    except BrokenPipeError:
        raise
    except (PackError, OSError) as error:
        refusals.add(refused := error if isinstance(error, PackError) else _system_error(error))
        if sweep:
            sweep.write_failure(refused, composed.packing.max_dropped_tokens)
        if not refusals.is_first_process:
            raise refused from None  # Hydra carries it to the process that called the launcher
        if HydraConfig.get().mode is not RunMode.MULTIRUN:
            sys.exit(refused.exit_code)
        return math.nan


def _objective(config: PackConfig, figures: Mapping[str, Any]) -> float:
    """Return a job's figure for a sweeper that optimises."""
    from energon_pack.report.sweep import objective_of

    return objective_of(figures, config.report.objective.value, config.packing.max_dropped_tokens)


def _pack(config: PackConfig, sweep: SweepJobFile | None, is_here: bool) -> Mapping[str, Any]:
    """Pack, and record the result for the sweep; return the figures."""
    from energon_pack.pack import pack
    from energon_pack.stages.places import OutputPlace

    if config.executor.kind == ExecutorKind.slurm:
        figures = _submit_to_slurm(config)
        if not figures:
            return figures
        say(f"see it: {OutputPlace.of(config).page}")
    elif is_here:
        figures = pack(config)
    else:
        with hold_output_under_title(job := _job_name()):
            figures = pack(config, job)
    if sweep:
        sweep.write_success(OutputPlace.of(config).page, figures, config.packing.max_dropped_tokens)
    return figures


def _place_and_settings(config: PackConfig) -> tuple[str, str]:
    """Return the place that a job of a sweep writes to, and all settings that the written bytes may depend on."""
    from energon_pack.stages.places import OutputPlace

    settings = {name: node for name, node in plain(config).items() if name not in ("executor", "measure", "cache_dir")}
    del settings["report"]["objective"]
    return os.path.abspath(OutputPlace.of(config).page), json.dumps(settings, sort_keys=True)


def _submit_to_slurm(config: PackConfig) -> dict[str, Any]:
    """Have Slurm do the run; return its results."""
    from energon_pack.stages.chain import run_stages_as_slurm_jobs

    options = parse_command_line()
    command = [sys.executable, "-m", "energon_pack"]
    for name in ("config_path", "config_dir", "config_name"):
        if value := getattr(options, name):
            command += [f"--{name.replace('_', '-')}", value]
    overrides = HydraConfig.get().overrides
    command += [word for word in overrides.hydra if word.lstrip("+").startswith("hydra.searchpath=")]
    command += [word for word in overrides.task if not _NOT_FOR_SLURM_JOBS.match(word)]
    command.append(f"output.name={config.output.name}")  # a sweep's job has a longer name than its settings give
    for name, value in config.executor.for_slurm_task().items():
        command.append(f"executor.{name}={getattr(value, 'value', json.dumps(value))}")
    return run_stages_as_slurm_jobs(config, command)


def main() -> NoReturn:
    """Run `energon-pack` or `python -m energon_pack`, and exit."""
    if len(sys.argv) > 1 and sys.argv[1] in TOOLS:
        _run_tool(sys.argv.pop(1))
    refusals = _Refusals()

    @hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")
    def run(composed: DictConfig) -> float:
        return _run_job(composed, refusals)

    OmegaConf.register_new_resolver("energon_pack_help", _end_of_help, replace=True)
    OmegaConf.register_new_resolver("energon_pack_runs", sweeps_folder, replace=True)
    if sys.argv[1:] in (["--version"], ["-V"]):
        print(f"energon-pack {VERSION}")
        sys.exit(0)
    if sys.argv[1:2] in (["--help"], ["-h"]) and sys.argv[2:]:
        _print_setting_help(sys.argv[2:])
    sys.argv[1:] = sorted(sys.argv[1:], key=lambda word: word not in _MULTIRUN)  # argparse wants these first
    prepare_tool_process()
    remove_sweep_from_environment()
    load_hydra_plugins(sys.argv)
    is_interrupted = False
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises, instead of printing several lines and exiting
    try:
        _refuse_dashes(sys.argv[1:])
        for word in sys.argv[1:]:
            refuse_password("", word)  # Hydra writes its arguments into the folder of a sweep
        os.environ[_SWEPT_KEYS_VARIABLE] = " ".join(_swept_keys(parse_command_line().overrides))
        run()
    except PackError as error:  # a job in another process raised it
        refusals.add(error)
    except (HydraException, OmegaConfBaseException) as error:
        refusals.add(PackError(hydra_error_line(error, sys.argv)))
    except BrokenPipeError:
        exit_after_closed_pipe()
    except OSError as error:
        refusals.add(_system_error(error))
    except KeyboardInterrupt:
        print("energon-pack: interrupted; the same command goes on from the lengths it has", file=sys.stderr)
        is_interrupted = True
    try:
        _end_sweep()
    except OSError as error:
        refusals.add(_system_error(error))
    end_process(EXIT_INTERRUPTED if is_interrupted else refusals.exit_code)


def _run_tool(name: str) -> NoReturn:
    """Run a tool: `energon-pack verify DIR` is `python -m energon_pack.verify DIR`."""
    module = "inspect.try_source" if name == "try" else name  # a keyword can't be imported
    runpy.run_module(f"energon_pack.{module}", run_name="__main__", alter_sys=True)
    raise AssertionError(f"energon_pack.{name} ends with an exit code")


def _print_setting_help(keys: Sequence[str]) -> NoReturn:
    """Print what settings mean, or which key is unknown, and exit."""
    from energon_pack.config.reference import help_lines

    try:
        print("\n".join(line for key in keys for line in help_lines(key)))
    except PackError as error:
        print_error("energon-pack: error", str(error))
        sys.exit(error.exit_code)
    sys.exit(0)


def _sweep_job() -> SweepJobFile | None:
    """Return this job of a sweep; None: this is a single run."""
    folder, hydra_config = sweep_folder(), HydraConfig.get()
    if hydra_config.mode is not RunMode.MULTIRUN or folder is None:
        return None
    return SweepJobFile(folder, hydra_config.job.num, list(hydra_config.overrides.task))


def _end_sweep() -> None:
    """Write the page and print the table of the sweep that ran, if one did."""
    if (folder := sweep_folder()) is not None:
        from energon_pack.report.sweep_page import write_sweep_page_and_json

        write_sweep_page_and_json(folder)


def _end_of_help() -> str:
    """Return the end of `--help`: the other programs, and the exit codes."""
    tools = "each with a page of its own (--help); energon-pack NAME runs the same"
    return "\n".join([f"Beside it, {tools}:", *tool_help_lines(), "", "Exit codes:", *exit_code_help_lines(EXIT_CODES)])


def _refuse_dashes(words: Sequence[str]) -> None:
    """Raise PackError for a setting that is written as an option: Hydra's own usage names none of our settings."""
    names = {field.name for field in fields(PackConfig)}
    for word in words:
        name, equals, value = word.partition("=")
        key = name.lstrip("-").replace("-", "_")
        if name.startswith("--") and key.partition(".")[0] in names:
            plus = "+" if key == "model" else ""
            raise PackError(f"{word}: settings have no dashes: {plus}{key}={value if equals else '…'}")


def _system_error(error: OSError) -> PackError:
    """Turn a refusal of the system into a PackError: a folder that can't be written, a full disk."""
    return PackError(f"{error.filename or 'writing failed'}: {error.strerror or error}")


def _default_config(ours: DictConfig) -> PackConfig:
    """Return the config with this run's choice of groups and no other override; a model's values go by its name.

    It is composed only if an override changes the name: composing takes a tenth of a start.
    """
    about = HydraConfig.get()
    overrides = OverridesParser.create().parse_overrides(list(about.overrides.task))
    is_ours = about.job.config_name == "config" and all(map(_keeps_the_name, overrides))
    composed = copy.deepcopy(ours) if is_ours else _compose_without_overrides()
    with flag_override(composed, ["readonly", "struct"], False):
        composed.pop("hydra", None)
        if ours.model.name in packaged_models():  # a user's own YAML may build upon this one, and keep its name
            composed.model = OmegaConf.merge(OmegaConf.structured(ModelConfig), read_model_config(ours.model.name))
        elif "model" not in about.runtime.choices:  # a user's own config has its values
            composed.model = ours.model
    return to_config(composed)


def _keeps_the_name(override: Override) -> bool:
    """Say whether the output has the same name without an override: a choice of a group is in its name by itself."""
    key, is_mapping = override.key_or_group, isinstance(override.value(), dict)
    if key in HydraConfig.get().runtime.choices and not is_mapping:
        return key.startswith("hydra/") or not ("/" in key or override.package)
    return not (
        is_mapping or is_in_name_hash(key)
    )  # what a mapping holds is not asked, such as the entries of a mixture


def _compose_without_overrides() -> DictConfig:
    choices = HydraConfig.get().runtime.choices
    groups = [group for group in choices if "/" not in group and "@" not in group]
    in_list = {group for one in OmegaConf.load(conf_dir() / "config.yaml").defaults for group in _entry_groups(one)}
    overrides = [f"{'' if group in in_list else '+'}{group}={choices[group]}" for group in groups]
    composed: DictConfig = GlobalHydra.instance().config_loader().load_configuration("config", overrides, RunMode.RUN)
    return composed


def _swept_keys(arguments: list[str]) -> list[str]:
    overrides = OverridesParser.create().parse_overrides(arguments)
    return [override.key_or_group for override in overrides if override.is_sweep_override()]


def _job_name() -> str:
    """Return the name of this job of a sweep."""
    config, swept = HydraConfig.get(), os.environ.get(_SWEPT_KEYS_VARIABLE, "").split()
    of_sweep = [item for item in config.overrides.task if item.lstrip("+").partition("=")[0] in swept]
    return " ".join([f"job {config.job.num}", *of_sweep])


def _entry_groups(entry: Any) -> list[str]:
    """Return the groups of one line of a defaults list."""
    return [str(group) for group in entry] if isinstance(entry, DictConfig) else []


def _swept_source_and_processor(source: SourceConfig, model: ModelConfig) -> dict[str, str]:
    """Return the sources and processors that this sweep is over: no content settings, and yet they change the data."""
    values = {"source.path": str(source.path), "model.processor": str(model.processor)}
    return {key: values[key] for key in os.environ.get(_SWEPT_KEYS_VARIABLE, "").split() if key in values}
