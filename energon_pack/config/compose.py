"""Compose a checked config from the words of a command line, and say Hydra's errors in one line.

The first functions use parts of Hydra for which it has no public way: its plugins, its parser, and its global state.
"""

import difflib
import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hydra import compose, initialize_config_dir
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.version import VersionBase
from omegaconf.errors import OmegaConfBaseException

from energon_pack.config import PackConfig, conf_dir
from energon_pack.config.validate import checked_config, to_config, unknown_key_hint, unknown_name_hint
from energon_pack.errors import PackError
from energon_pack.run.command import TOOLS
from energon_pack.samples.skip import setting_word

_STORAGE_CLIENT = "multistorageclient"


def load_hydra_plugins(arguments: Sequence[str]) -> None:
    """Load Hydra's plugins; that of Energon's storage client only if an argument has an address `msc://`.

    Importing that one takes a quarter of a second, and it prints a traceback for each other address it is shown.
    """
    if any("msc://" in word for word in arguments) or _STORAGE_CLIENT in sys.modules:
        return
    sys.modules[_STORAGE_CLIENT] = None  # type: ignore[assignment]  # the plugin then leaves itself out
    try:
        Plugins.instance()
    finally:
        del sys.modules[_STORAGE_CLIENT]


def parse_command_line() -> Any:
    """Return the command's arguments as Hydra parses them: its options, and `overrides`."""
    return get_args_parser().parse_known_args()[0]


@contextmanager
def _hydra_set_aside() -> Iterator[None]:
    """Let the block use Hydra inside another application of Hydra, such as a trainer, whose state comes back after."""
    hydra, version = GlobalHydra.instance().hydra, VersionBase.instance().version_base
    GlobalHydra.instance().clear()
    try:
        yield
    finally:
        if hydra is not None:
            GlobalHydra.instance().hydra = hydra
            VersionBase.instance().version_base = version


_DATA_SUFFIXES = (".tar", ".jsonl", ".json", ".parquet", ".arrow", ".csv", ".tsv", ".yaml", ".lmdb")
_LIST_KEYS = ("source.path", "report.lens")  # settings that are lists, and may be given as a single value


def config_of(run: PackConfig | Sequence[str]) -> PackConfig:
    """Check `run` if it is a config; else compose the config from these overrides, as `compose_config` does.

    Raises:
        PackError: a value makes no sense; for overrides, also what `compose_config` raises.
    """
    return checked_config(run) if isinstance(run, PackConfig) else compose_config(run)


def compose_config(overrides: Sequence[str]) -> PackConfig:
    """Compose and check the config of a run.

    Args:
        overrides: as on the command line: `["+model=qwen2_5_vl", "source.path=…"]`.

    Raises:
        PackError: an unknown key, a value that makes no sense, no model.
    """
    if isinstance(overrides, str):
        raise PackError(f"overrides={overrides!r}: a list of them, as ['+model=qwen2_5_vl', 'source.path=…']")
    try:
        with _hydra_set_aside(), initialize_config_dir(str(conf_dir()), version_base="1.3"):
            return to_config(compose("config", list(overrides)))
    except (HydraException, OmegaConfBaseException) as error:
        raise PackError(hydra_error_line(error, overrides)) from None


def _tool_hint(word: str, arguments: Sequence[str]) -> str:
    """Return `; did you mean energon-pack verify …?` for a word that is nearly the name of a tool; else ""."""
    near = difflib.get_close_matches(word, TOOLS, n=1)
    if not near:
        return ""
    rest = [argument for argument in arguments[1:] if argument != word]
    return f"; did you mean energon-pack {shlex.join([near[0], *rest])}?"


def _source_path_hint(word: str) -> str:
    """Return `; did you mean source.path=…?` for a word that is, or looks like, the path of data; else ""."""
    is_path = "/" in word or os.path.exists(word) or word.lower().endswith(_DATA_SUFFIXES)
    return f"; did you mean {setting_word('source.path', word)}?" if is_path else ""


def hydra_error_line(error: Exception, arguments: Sequence[str]) -> str:
    """Return Hydra's or OmegaConf's error as one line with the value and the fix; `arguments`: the command's words."""
    if isinstance(error, MissingConfigException) and error.options is not None:
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        return f"no {group} '{name}'; {unknown_name_hint(name, error.options)}"
    if isinstance(error, OverrideParseException):
        key, equals, value = error.override.partition("=")
        if value.endswith(","):
            return f"{error.override}: a list of values has no blanks: {key}=1024,2048"
        if equals:
            return f"{error.override}: a value with special characters goes in quotes: {setting_word(key, value)}"
        hint = _tool_hint(key, arguments) or _source_path_hint(key)
        return f"{error.override}: not of the form KEY=VALUE{hint}"
    text = "\n".join(dict.fromkeys(str(e) for e in (error, error.__cause__) if e is not None))
    if refused := re.search(r"Could not override '([\w.]+)'", text):
        key = refused[1]
        spelled = next((argument for argument in arguments if argument.startswith(f"{key}=")), f"{key}=…")
        if "No match in the defaults list" in text:
            instead = f"model.processor={spelled.partition('=')[2]}" if "/" in spelled else f"+{spelled}"
            return f"{spelled}: {key} has no default to replace; write {instead}"
        return f"{spelled}: unknown key {key}; {unknown_key_hint(key)}"
    if is_node := re.search(r"Error merging override (([\w.]+)=.*)\n.* is not a subclass of ", text):
        return f"{is_node[1]}: {is_node[2]} has keys of its own; {unknown_key_hint(is_node[2] + '.')}"
    if several := re.search(r"Ambiguous value for argument '(([^=]+)=(.*))'\n", text):
        as_list = f"; a list is '{several[2]}=[{several[3]}]'" if several[2] in _LIST_KEYS else ""
        return f"{several[1]}: a sweep over these values needs -m{as_list}"
    lines = [line.strip().removeprefix("Error merging override ") for line in text.splitlines()]
    return ": ".join(
        line for line in lines if line and not line.startswith(("full_key", "object_type", "reference_type"))
    )
