"""Find the folder, or the zip archive, that the names of media in a file are relative to.

    data/train.jsonl  {"images": ["1.jpg"]}  ──►  data/1.jpg, else 1.jpg in ., */, */train/, data/*/, data/*/train/

The folder of the file is always the first choice. On a store, folders are listed without their subfolders, and fewer
names are looked up.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain

from energon_pack.errors import PackError
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Skip
from energon_pack.sources.inside import media_in, split_name
from energon_pack.sources.jsonl.index import LINE
from energon_pack.sources.open_files import open_medium
from energon_pack.sources.shard import JsonlShard
from energon_pack.sources.storage import folder_of, names_in, path_in

_NUM_SAMPLES = 16
_MOST_NAMES, _MOST_NAMES_STORED = 8, 2  # names of media that are looked up in each place
_MOST_FOLDERS = 64  # subfolders of one folder: if there are more, each probably holds one sample's media


def find_media_root(shard: JsonlShard, settings: ReadSettings) -> str | None:
    """Find the folder of the first media of a file; None: they are beside it, or nowhere, or it names none.

    Raises:
        PackError: two places have equally many of them.
    """
    folder = folder_of(shard.path)
    most_names = _MOST_NAMES_STORED if shard.is_stored else _MOST_NAMES
    names = [*dict.fromkeys(_first_names(shard, settings))][:most_names]
    if not names or any(_is_there(folder, name) for name in names):
        return None
    found = {root: sum(_is_there(root, name) for name in names) for root in _places_around(shard.path)}
    most = max(found.values(), default=0)
    best = [root for root, number in found.items() if number == most]
    if most and len(best) > 1:
        raise PackError(
            f"{shard.path}: {names[0]} is in {best[0]} and in {best[1]}: source.media_root=FOLDER says which is meant"
        )
    return best[0] if most else None


def _first_names(shard: JsonlShard, settings: ReadSettings) -> Iterator[str]:
    for raw in shard.first(_NUM_SAMPLES):
        with suppress(Skip):
            for name in shard.record(raw, LINE, False, settings).listed_media or ():
                if "://" not in name and not os.path.isabs(name) and split_name(name)[1] is None:
                    yield name


def _places_around(path: str) -> Iterator[str]:
    folder = folder_of(path)
    above = folder_of(folder)
    stem = os.path.basename(path).partition(".")[0]
    yield above
    for place in (*_inside(folder), *(place for place in _inside(above) if place != folder)):
        yield from (place, path_in(place, stem))


def _inside(folder: str) -> list[str]:
    names = [name for name in names_in(folder) if not name.startswith(".")]
    folders = [name.rstrip("/") for name in names if name.endswith("/")]
    archives = [name for name in names if name.endswith(".zip")]
    groups = [group for group in (folders, archives) if len(group) <= _MOST_FOLDERS]
    return sorted(path_in(folder, name) for name in chain.from_iterable(groups))


def _is_there(root: str, name: str) -> bool:
    try:
        with open_medium(media_in(root, name) or path_in(root, name)):
            return True
    except (OSError, KeyError, ValueError, Skip):
        return False
