"""Load somebody else's code by its name in a setting: `module:attribute`, or the name of an installed entry point."""

import os
import sys
from importlib import import_module
from typing import Any

from energon_pack.errors import PackError, one_line


def load_named(setting: str, name: str) -> Any:
    """Import the object `module:attribute` that a setting names, from an installed package or a file in this folder."""
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise PackError(f"{setting}={name}: code is named module:attribute, as my_steps:shorten for my_steps.py here")
    if not {"", os.getcwd()} & {*sys.path}:  # `python -m` puts the current folder there, a console script does not
        sys.path.append(os.getcwd())
    try:
        return getattr(import_module(module), attribute)
    except Exception as error:  # importing foreign code may fail in any way
        raise PackError(f"{setting}={name}: {one_line(error)}") from None


def load_entry_point(group: str, setting_name: str, name: str) -> Any:
    """Load what an installed package registers under a name in the group `energon_pack.…`; None: no package does."""
    from importlib.metadata import entry_points  # imported only for names that are not ours: it looks at every package

    point = next(iter(entry_points(group=f"energon_pack.{group}", name=name)), None)
    if point is None:
        return None
    try:
        return point.load()
    except Exception as error:  # importing foreign code may fail in any way
        raise PackError(f"{setting_name}={name} ({point.value}): {one_line(error)}") from None
