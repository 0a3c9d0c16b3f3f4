"""Classes of transformers that take the reference kernels for installed packages: it looks for them once, at import."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from support.running import ROOT

_FOLDER = str(ROOT / "tests" / "support" / "reference_kernels")
_PACKAGES = ("causal_conv1d", "fla", "mamba_ssm")


@contextmanager
def with_kernels(*kinds: str) -> Iterator[list[Any]]:
    """Import the modules of some model types again with the kernels; restore the old modules at the end.

    Args:
        kinds: such as `lfm2`.
    """
    names = [f"transformers.models.{kind}.modeling_{kind}" for kind in kinds]
    before = {name: sys.modules.pop(name, None) for name in names}
    sys.path.insert(0, _FOLDER)
    try:
        yield [importlib.import_module(name) for name in names]
    finally:
        sys.path.remove(_FOLDER)
        for name in [name for name in sys.modules if name.partition(".")[0] in _PACKAGES]:
            del sys.modules[name]
        for name, module in before.items():
            sys.modules.pop(name, None)
            home, _, last = name.rpartition(".")
            vars(sys.modules[home]).pop(last, None)
            if module is not None:
                sys.modules[name] = module
                setattr(sys.modules[home], last, module)
