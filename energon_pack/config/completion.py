"""Complete words in a shell with every value of a field, and files; Hydra itself offers only the present value."""

import glob
import os
from enum import Enum
from typing import Any

from hydra.plugins.completion_plugin import CompletionPlugin
from omegaconf import BooleanNode, DictConfig, EnumNode, OmegaConf

from energon_pack.config.schema import Flavor
from energon_pack.sources.settings import Format

#: settings for which installed packages may add values
_OPEN: dict[str, type[Enum]] = {"output.flavor": Flavor, "source.format": Format}
_PATHS = ("source.path", "source.media_root", "model.processor", "model.chat_template", "output.dir", "cache_dir")
_matches_of_hydra = CompletionPlugin._get_matches
_query_of_hydra = CompletionPlugin._query


def matches(config: Any, word: str) -> list[str]:
    """Return the completions of a word on the command line."""
    key, equals, begin = word.partition("=")
    parent, _, name = key.rpartition(".")
    node = OmegaConf.select(config, parent) if equals and parent and isinstance(config, DictConfig) else config
    field = node._get_node(name) if equals and isinstance(node, DictConfig) else None
    values: list[str] = []
    if isinstance(field, EnumNode):
        values = list(field.enum_type.__members__)
    elif isinstance(field, BooleanNode):
        values = ["true", "false"]
    elif equals and key in _OPEN:
        values = [each.value for each in _OPEN[key]]
    elif equals and key in _PATHS and (begin or field is None or field._value() is None):
        return [f"{key}={path}" for path in _files(begin)]
    if values:
        return [f"{key}={value}" for value in values if value.startswith(begin)]
    found: list[str] = _matches_of_hydra(config, word)
    return found


def _files(begin: str) -> list[str]:
    """Return the files and folders whose paths begin so; a folder ends with a slash, so that typing can go on."""
    home = os.path.expanduser(begin)
    found = sorted(glob.glob(f"{glob.escape(home)}*"))
    return [begin + path[len(home) :] + ("/" if os.path.isdir(path) else "") for path in found]


def query(self: CompletionPlugin, config_name: str | None, line: str) -> list[str]:
    """Return the completions of a line's last word; a model is chosen with a plus sign, and once."""
    found = set(_query_of_hydra(self, config_name, line))
    if "model=" in found:
        found = found - {"model="} | (set() if "+model=" in line else {"+model="})
    return sorted(found)


def install() -> None:
    """Replace Hydra's own completion by this one; Hydra has no setting for that."""
    for name, function in (("_get_matches", staticmethod(matches)), ("_query", query)):
        setattr(CompletionPlugin, name, function)
