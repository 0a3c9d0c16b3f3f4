"""Completion in a shell offers every value of an enumerated field; Hydra by itself offers the present one."""

from typing import Any

from hydra.plugins.completion_plugin import CompletionPlugin
from omegaconf import DictConfig, EnumNode, OmegaConf

_matches_of_hydra = CompletionPlugin._get_matches


def matches(config: Any, word: str) -> list[str]:
    """What a word on the command line may become."""
    key, equals, begin = word.partition("=")
    parent, _, name = key.rpartition(".")
    node = OmegaConf.select(config, parent) if equals and isinstance(config, DictConfig) else None
    field = node._get_node(name) if isinstance(node, DictConfig) else None
    if isinstance(field, EnumNode):
        return [f"{key}={value}" for value in field.enum_type.__members__ if value.startswith(begin)]
    found: list[str] = _matches_of_hydra(config, word)
    return found


def install() -> None:
    """Have Hydra ask `matches`; it has no place to say so."""
    setattr(CompletionPlugin, "_get_matches", staticmethod(matches))  # noqa: B010 (mypy)
