"""Name the entries of `source.media_map` that no medium of the source needs: they may be misspelled."""

import re
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from energon_pack.sources.media_map import MediaMap, mapped_name


def unused_line(media_map: MediaMap, places: Iterable[str], tables: Iterable[pa.Table]) -> str:
    """Return a line about the entries of a map that no medium needs; empty: there are none.

    Args:
        places: the files of the source and the folders of their media; a mixture may name them by the map.
        tables: the media of all samples, in the column `parts`, and why samples are left out, in `detail`.
    """
    every = [*places]
    unused = [old for old, new in media_map if not any(place.startswith(new) for place in every)]
    for table in tables if unused else ():
        names = pc.list_flatten(table["parts"].combine_chunks()).field("name")
        unused = [
            old for old in unused if not _any_in_folder(names, old) and not _is_in_skip_details(table["detail"], old)
        ]
    if not unused:
        return ""
    named = " or ".join(map(repr, unused))
    return f"source.media_map: no medium's path begins with {named}: is it spelled as in the data?"


def _any_in_folder(names: pa.Array, old: str) -> bool:
    """Tell whether a name lies in the folder `old`, as `mapped_name` says."""
    begun = names.filter(pc.starts_with(names, old))
    return any(mapped_name(name, ((old, "."),)) != name for name in begun.unique().to_pylist())


def _is_in_skip_details(details: pa.ChunkedArray, old: str) -> bool:
    """Tell whether the reason why a sample is left out has the path: a missing medium is in no other column."""
    told = re.escape(repr(old)[1:-1].rstrip("/\\")) + r"[/'\\]"
    return bool(pc.any(pc.match_substring_regex(details, told)).as_py())
