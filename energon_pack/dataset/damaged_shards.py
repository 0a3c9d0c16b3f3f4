"""Say before training what of a dataset is lost: a loader would end hours later, somewhere in a traceback."""

import os
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from energon_pack.dataset.pack_parts import read_first_json_of_shard
from energon_pack.errors import PackError, amount
from energon_pack.run.address import bucket_of
from energon_pack.samples.sample import has_references, references_by_member
from energon_pack.sources.storage import open_file

_HOW_TO_REPAIR = "copy it again from where it is whole, or pack again"
_MAX_CHECKED_SHARDS = 32  # whose first media are looked for


def refuse_damaged_shards(dataset: str, manifest: Mapping[str, Any], shards: Sequence[str]) -> None:
    """Raise PackError if a shard is missing or cut, or media that the shards' first packs refer to can't be opened.

    On an object store nothing is checked: an object is there as a whole or not at all.

    `dataset`: a folder; `manifest`: its energon_pack.json, or {} if another tool packed it; `shards`: file names.
    """
    if bucket_of(dataset):
        return
    lost = [f"{path} {why}" for name in shards if (why := _why_damaged(path := os.path.join(dataset, name)))]
    if lost:
        more = f", and {amount(len(lost) - 1, 'more shard')}" if len(lost) > 1 else ""
        raise PackError(f"{lost[0]}{more}: {_HOW_TO_REPAIR}")
    if manifest.get("content", {}).get("output", {}).get("media") == "reference":
        _open_first_media(dataset, shards[:_MAX_CHECKED_SHARDS])


def unreadable_shard_error(path: str, error: Exception) -> PackError:
    """Return the error that says that a shard can't be read, for a loader in training."""
    why = getattr(error, "strerror", None) or (error.args[0] if error.args else type(error).__name__)
    return PackError(f"{path} can't be read: {why}: {_HOW_TO_REPAIR}")


def _why_damaged(path: str) -> str | None:
    try:
        size = os.stat(path).st_size
        with open(f"{path}.idx", "rb") as index:
            end = int.from_bytes(index.read()[-8:], "little")
    except FileNotFoundError:
        return None if os.path.exists(path) else "is missing"  # another tool's shard may have no index
    return None if size >= end else f"is cut: it has {size:,} bytes of {end:,}"


def _open_first_media(dataset: str, shards: Sequence[str]) -> None:
    """Open one medium of each source file that the first pack of any of these shards refers to."""
    from energon_pack.dataset.source_media import ReferencedMediaReader

    media, opened = ReferencedMediaReader(dataset), set[str | int]()
    for path in (os.path.join(dataset, name) for name in shards):
        try:
            with open_file(path) as file:
                value = read_first_json_of_shard(file)
            references = [*chain.from_iterable(references_by_member(value) if has_references(value) else ())]
        except (LookupError, TypeError, ValueError, StopIteration) as error:
            raise unreadable_shard_error(path, error) from None
        for reference in references:
            if reference.place[0] not in opened:
                opened.add(reference.place[0])
                media.opened(reference)
