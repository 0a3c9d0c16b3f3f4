"""Find the folders beside datasets: of the cache, by `cache_dir` or `.cache` in `output.dir`, and of sweeps."""

import hashlib
from pathlib import Path

from energon_pack.run.stores import is_address, tidy
from energon_pack.run.user_cache import user_folder
from energon_pack.sources.storage import path_in


def cache_folder(cache_dir: str | None, output_dir: str) -> Path:
    """Return the folder of the cache; for a cache on an object store, its copy on this machine."""
    address = cache_address(cache_dir, output_dir)
    if address is not None:
        return user_folder("mirrors", short_hash(address))
    return Path(_place(cache_dir, output_dir)).expanduser()


def cache_address(cache_dir: str | None, output_dir: str) -> str | None:
    """Return the address of the cache; None: it is not on an object store."""
    place = _place(cache_dir, output_dir)
    return tidy(place) if is_address(place) else None


def sweeps_folder(output_dir: str) -> str:
    """Return the folder of sweeps: beside the datasets, or on this machine if those are on an object store."""
    return str(user_folder("runs", "")) if is_address(output_dir) else f"{output_dir}/.runs"


def _place(cache_dir: str | None, output_dir: str) -> str:
    return cache_dir or path_in(output_dir, ".cache")


def short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
