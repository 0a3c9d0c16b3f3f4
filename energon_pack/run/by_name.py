"""Code of somebody else, by its name in a setting: `module:attribute`."""

import os
import sys
from importlib import import_module
from typing import Any

from energon_pack.errors import PackError, one_line


def load_named(setting: str, name: str) -> Any:
    """Import what a setting names: from an installed package, or from a file in the current folder.

    Args:
        setting: its key, for the error.
        name: `module:attribute`.

    Raises:
        PackError: there is no such module or attribute, or importing it fails.
    """
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise PackError(f"{setting}={name}: code is named module:attribute, as my_steps:shorten for my_steps.py here")
    if not {"", os.getcwd()} & {*sys.path}:  # `python -m` has it there, a console script has not
        sys.path.append(os.getcwd())
    try:
        return getattr(import_module(module), attribute)
    except Exception as error:  # importing code of somebody else may fail in any way
        raise PackError(f"{setting}={name}: {one_line(error)}") from None
