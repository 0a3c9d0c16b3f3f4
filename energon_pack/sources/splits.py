"""Take one split of a folder of tables, by the names of files and folders, as on the Hugging Face Hub. Pure.

data/train-00000-of-00002.parquet, train/data-00000-of-00001.arrow, validation.csv
"""

import re
from collections import Counter
from collections.abc import Sequence

from energon_pack.errors import PackError, amount

#: caches of `datasets`, and the plan of a packed dataset
_NO_SAMPLES = re.compile(r"(?:^|/)(cache-|pack_plan\.)[^/]*$")
_NAMED = re.compile(r"(?:^|[/_.-])(train|training|validation|valid|val|dev|test|testing)(?=[/_.-])")
_ALIKE = {"training": "train", "valid": "validation", "val": "validation", "dev": "validation", "testing": "test"}


def of_split(folder: str, files: Sequence[str], split: str | None) -> list[str]:
    """Return the files of a split that hold samples.

    Args:
        folder: the folder of the files.
        split: its name; None: there is only one.

    Raises:
        PackError: there is no such split, or there are several and none is named.
    """
    found = {file: split_of(file.removeprefix(folder).lstrip("/")) for file in with_samples(files)}
    counts = Counter(found.values())
    seen = ", ".join(f"{name or 'of no split'}: {amount(number, 'file')}" for name, number in counts.items())
    if split is None:
        if len(counts) > 1:
            raise PackError(
                f"source.path={folder}: {seen}; source.split=train takes one split, a list of globs several"
            )
        return list(found)
    taken = [file for file, name in found.items() if name == _ALIKE.get(split, split)]
    if found and not taken:
        raise PackError(f"source.split={split}: {folder} has {seen}")
    return taken


def with_samples(files: Sequence[str]) -> list[str]:
    """Leave out the files that libraries write beside tables of samples."""
    return [file for file in files if not _NO_SAMPLES.search(file)]


def split_of(name: str) -> str | None:
    """Return the last split that a path below its folder names; None: it names none."""
    named = _NAMED.findall(name)
    return _ALIKE.get(named[-1], named[-1]) if named else None
