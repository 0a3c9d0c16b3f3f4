"""The places where Hydra has no public way: its plugins' start, its parser of arguments, an application that runs."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.version import VersionBase

_STORAGE_CLIENT = "multistorageclient"


def load_plugins(arguments: Sequence[str]) -> None:
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


def parsed_arguments() -> Any:
    """Return the command's arguments as Hydra parses them: its options, and `overrides`."""
    return get_args_parser().parse_known_args()[0]


@contextmanager
def hydra_set_aside() -> Iterator[None]:
    """Let the block use Hydra inside another application of Hydra, such as a trainer, whose state comes back after."""
    hydra, version = GlobalHydra.instance().hydra, VersionBase.instance().version_base
    GlobalHydra.instance().clear()
    try:
        yield
    finally:
        if hydra is not None:
            GlobalHydra.instance().hydra = hydra
            VersionBase.instance().version_base = version
