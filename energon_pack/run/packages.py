"""Other packages: their versions, imports that take seconds (torch, transformers, Energon), and objects patched."""

import gc
import hashlib
import importlib.metadata
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from energon_pack.version import VERSION

#: Packages on which lengths or bytes of packs may depend.
_PACKAGES = ("transformers", "tokenizers", "pyarrow", "pillow", "av")


def collect_garbage_rarely() -> None:
    """Let Python collect garbage after 50,000 new objects, not 700: samples have no cycles, collecting costs 8 %."""
    gc.set_threshold(50_000, 20, 20)


@contextmanager
def faster_imports() -> Iterator[None]:
    """Import in the block without garbage collection, then or later, of what it imports: this saves a fifth of time."""
    num_modules, was_on = len(sys.modules), gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > num_modules:
            gc.freeze()
        if was_on:
            gc.enable()


@cache
def version_of(package: str) -> str | None:
    """Return the installed version of a package; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@cache
def package_versions() -> dict[str, str | None]:
    """Return the versions of the packages that lengths and packs depend on.

    For this package, a hash of the code is included, because a checkout has no version of its own.
    """
    root = Path(__file__).resolve().parents[1]
    code = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        code.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    version = f"{VERSION} (code {code.hexdigest()[:8]})"
    return {"energon-pack": version, **{name: version_of(name) for name in _PACKAGES}}


@contextmanager
def patched(owner: Any, **values: Any) -> Iterator[None]:
    """Set these attributes of an object in this context, and restore the old ones at its end."""
    if not values:
        yield
        return
    attributes = vars(owner)
    before = {name: attributes[name] for name in values if name in attributes}
    attributes.update(values)
    try:
        yield
    finally:
        for name in values:
            attributes.pop(name)
        attributes.update(before)
