"""Skip work that Hydra does at every start, and that nobody here needs: it took half of the time of `--help`."""

import sys
from collections.abc import Sequence

from hydra._internal.hydra import Hydra
from hydra.core.plugins import Plugins

_STORAGE_CLIENT = "multistorageclient"
_list_groups = Hydra.list_all_config_groups


def find_plugins(arguments: Sequence[str]) -> None:
    """Find Hydra's plugins, except the one of Energon's storage client, which reads configs from `msc://`.

    Importing it takes a quarter of a second, and it prints a traceback for each other address it is shown.

    Args:
        arguments: of the command; a config at `msc://` would be named there.
    """
    if any("msc://" in word for word in arguments) or _STORAGE_CLIENT in sys.modules:
        return
    sys.modules[_STORAGE_CLIENT] = None  # type: ignore[assignment]  # the plugin then leaves itself out
    try:
        Plugins.instance()
    finally:
        del sys.modules[_STORAGE_CLIENT]


def list_own_groups() -> None:
    """Have a page of help read the groups of `conf/` alone: Hydra has thirty of its own, and prints none here."""
    setattr(Hydra, "list_all_config_groups", _own_groups)  # noqa: B010  # Hydra has no setting for it


def _own_groups(self: Hydra, parent: str = "") -> list[str]:
    return [] if parent == "hydra" else [*_list_groups(self, parent)]
