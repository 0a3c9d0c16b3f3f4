"""energon_pack: multimodal fine-tuning samples, packed into full sequences for Megatron-Energon.

    from energon_pack import PackedTaskEncoder, train_arguments

This is the one door: every name that other code may import is listed in the stub beside this file, `__init__.pyi`. Each
is imported when it is first asked for, because every Hydra application of an environment imports this package for its
plugin, and a training job loads only what it needs.
"""

import re
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from energon_pack.version import VERSION

__version__ = VERSION

#: by public name: the module that defines it
_MODULE_OF = {
    name: home
    for home, name in re.findall(
        r"^from (\S+) import (\S+) as \2$", Path(__file__).with_suffix(".pyi").read_text(), re.MULTILINE
    )
}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    home = _MODULE_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'energon_pack' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """The package, in which a public name wins over the file of that name: `pack` is the function, not pack.py."""

    def __setattr__(self, name: str, value: object) -> None:
        if name not in _MODULE_OF or not isinstance(value, ModuleType):  # the import of pack.py would set the module
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
