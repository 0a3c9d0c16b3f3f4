"""The command line: Hydra composes the config, `pack` does the work, and a user's error is one line.

Nothing here imports torch or transformers, so that `--help` and completion answer at once.
"""

import os
import re
import shutil
import signal
import sys
from pathlib import Path
from typing import NoReturn

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, flag_override
from omegaconf.errors import OmegaConfBaseException

from energon_pack import __version__
from energon_pack.config import PackConfig, conf_dir, nearest_key, output_name, to_config
from energon_pack.errors import PackError

_EXIT_INTERRUPTED = 130

#: Exit codes of the jobs of a sweep that failed; the others go on.
_failed: list[int] = []


@hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")
def _run(composed: DictConfig) -> None:
    try:
        if any(override.startswith("+model=[") for override in HydraConfig.get().overrides.task):
            raise PackError("+model takes one model; sweep over several with -m +model=A,B")
        config = to_config(composed, _options("model"))
        config.output.name = config.output.name or output_name(config, _defaults(composed))
    except PackError as error:
        _remove_run_folder()
        _exit(error)  # wrong for every job of a sweep
    from energon_pack.pack import pack

    try:
        pack(config)
    except PackError as error:
        if error.exit_code == 1:
            _remove_run_folder()
        if HydraConfig.get().mode is not RunMode.MULTIRUN:
            _exit(error)
        _print(error)
        _failed.append(error.exit_code)


def main() -> NoReturn:
    """Entry point of `energon-pack` and of `python -m energon_pack`."""
    if sys.argv[1:] == ["--version"]:
        print(f"energon-pack {__version__}")
        sys.exit(0)
    signal.signal(signal.SIGTERM, lambda *_: _interrupt())
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises, instead of printing several lines and exiting
    try:
        _run()
    except (HydraException, OmegaConfBaseException) as error:
        _exit(PackError(_one_line(error)))
    except OSError as error:
        if error.filename is None:
            raise
        _exit(PackError(f"{error.filename}: {error.strerror}"))
    except KeyboardInterrupt:
        print("energon-pack: interrupted; the same command goes on from the lengths it has", file=sys.stderr)
        sys.exit(_EXIT_INTERRUPTED)
    sys.exit(max(_failed, default=0))


def _interrupt() -> NoReturn:
    raise KeyboardInterrupt


def _exit(error: PackError) -> NoReturn:
    _print(error)
    sys.exit(error.exit_code)


def _print(error: PackError) -> None:
    print(f"energon-pack: error: {error}", file=sys.stderr)


def _options(group: str) -> list[str]:
    """Options of a group, from every folder of the search path."""
    names: list[str] = GlobalHydra.instance().config_loader().get_group_options(group)
    return names


def _defaults(ours: DictConfig) -> PackConfig:
    """The config with this run's choice of groups and no other override."""
    loader = GlobalHydra.instance().config_loader()
    choices = HydraConfig.get().runtime.choices
    groups = [group for group in choices if "/" not in group and "@" not in group]
    in_list = loader.load_configuration("config", [], RunMode.RUN).hydra.runtime.choices
    overrides = [f"{'' if group in in_list else '+'}{group}={choices[group]}" for group in groups]
    composed = loader.load_configuration("config", overrides, RunMode.RUN)
    with flag_override(composed, ["readonly", "struct"], False):
        del composed["hydra"]
        if "model" not in choices:  # spelled out in a config of the user's own
            composed.model = ours.model
    return to_config(composed, [])


def _remove_run_folder() -> None:
    """A refused run leaves nothing behind, in case its output lies where nothing may be written."""
    folder = Path(HydraConfig.get().runtime.output_dir)
    shutil.rmtree(folder, ignore_errors=True)
    for parent in (folder.parent, folder.parent.parent):
        try:
            parent.rmdir()
        except OSError:
            return


def _one_line(error: Exception) -> str:
    """What Hydra or OmegaConf object to, in one line that names the value and the fix."""
    if isinstance(error, MissingConfigException) and error.options is not None:
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        return f"no {group} '{name}'; there are: {', '.join(error.options)}"
    text = "\n".join(dict.fromkeys(str(e) for e in (error, error.__cause__) if e is not None))
    if refused := re.search(r"Could not override '([\w.]+)'", text):
        key = refused[1]
        given = next((argument for argument in sys.argv if argument.startswith(f"{key}=")), f"{key}=…")
        if "No match in the defaults list" in text:
            return f"{given}: {key} has no default to replace; write +{given}"
        return f"{given}: unknown key {key}; {nearest_key(key)}"
    lines = [line.strip().removeprefix("Error merging override ") for line in text.splitlines()]
    return ": ".join(
        line for line in lines if line and not line.startswith(("full_key", "object_type", "reference_type"))
    )
