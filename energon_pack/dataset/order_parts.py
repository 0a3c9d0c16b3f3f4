"""Recognise an order over several packed datasets (`ordered`), and list these datasets."""

import hashlib
from pathlib import Path

from energon_pack.dataset.folder import DatasetFolder
from energon_pack.dataset.manifest import MANIFEST, ORDER
from energon_pack.errors import PackError
from energon_pack.run.files import META_FOLDER


def parts_of(folder: DatasetFolder) -> list[str]:
    """Return the paths of the datasets in an order; empty: the folder is no order."""
    if not folder.has(f"{META_FOLDER}/{ORDER}"):
        return []
    try:
        return [str(part["path"]) for part in folder.read_object(f"{META_FOLDER}/{MANIFEST}")["parts"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def opened(place: str | Path) -> DatasetFolder:
    """Open a folder of packs; raises PackError for an order over several, which holds none."""
    folder = DatasetFolder(place)
    if parts := parts_of(folder):
        raise PackError(f"{folder} is an order over datasets, and holds no packs: name {' or '.join(parts)}")
    return folder


def digest(folder: DatasetFolder) -> str:
    """Return a hash of how a dataset was packed, which changes when it is packed again."""
    return hashlib.sha256(folder.read(f"{META_FOLDER}/{MANIFEST}")).hexdigest()[:16]
