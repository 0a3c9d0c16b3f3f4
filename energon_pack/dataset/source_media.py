"""Read packs whose media lie in their source: find the source, and read the media as if they were in the shard.

The source is looked for in this order: the loader's argument (`source_root` in dataset.yaml), the environment variable
ENERGON_PACK_SOURCE, and report.json beside the packs, which names the place at the time of packing.
"""

import os
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from energon_pack.dataset.manifest import REPORT
from energon_pack.errors import PackError
from energon_pack.run.untrusted_input import parse_json
from energon_pack.samples.bytes import Bytes
from energon_pack.samples.sample import Parts, Reference
from energon_pack.sources.storage import open_file, path_in

if TYPE_CHECKING:
    from energon_pack.sources.referenced_media import SourceMediaReader

SOURCE_ROOT_VARIABLE = "ENERGON_PACK_SOURCE"


def source_root(dataset: str | os.PathLike[str]) -> str:
    """Return the folder or address of a dataset's source: from ENERGON_PACK_SOURCE, else from report.json.

    Raises:
        PackError: neither names it.
    """
    if root := os.environ.get(SOURCE_ROOT_VARIABLE):
        return root
    try:
        with open_file(path_in(os.fspath(dataset), REPORT)) as file:
            root = parse_json(file.read(0, file.size)).get("source_root")
    except (OSError, ValueError, AttributeError):
        root = None
    if not isinstance(root, str):
        raise PackError(
            f"{os.fspath(dataset)}: its media lie in its source, and no {REPORT} beside it says where that is:"
            f" {SOURCE_ROOT_VARIABLE}=FOLDER does"
        )
    return root


class ReferencedMediaReader:
    """Reads the media that a dataset's packs refer to. Their source is looked for when the first medium is read.

    Args:
        root: the place of the source; None: see `source_root`.
        whole: `read_ahead` requests all bytes of media; else only the first and last of each.
    """

    def __init__(self, dataset: str | os.PathLike[str], root: str | None = None, whole: bool = False):
        self._dataset, self._root, self._whole = os.fspath(dataset), root, whole

    @cached_property
    def _source(self) -> "SourceMediaReader":
        from energon_pack.sources.referenced_media import SourceMediaReader  # most packs hold their media

        return SourceMediaReader(self._root or source_root(self._dataset))

    def opened(self, reference: Reference) -> Bytes:
        """Open a medium as a file of bytes; raises what `SourceMediaReader.opened` and `source_root` raise."""
        return self._source.opened(reference)

    def read_ahead(self, references: Sequence[Reference]) -> None:
        """Read media from an object store ahead, all at once: at most `sources.referenced.MEDIA_AT_ONCE`."""
        self._source.read_ahead(references, self._whole)

    def read(self, references: Sequence[Reference], parts: Parts | None = None) -> list[bytes]:
        """Return the bytes of each medium; `parts` is not used."""
        return self._source.read(references) if references else []


class EnergonMediaReader:
    """Reads media that packs refer to, for Energon's loaders: each pack tells its dataset. Workers can unpickle it."""

    def __init__(self, root: str | None = None):
        self._root = root
        self._datasets: dict[str, ReferencedMediaReader] = {}

    def __call__(self, references: Sequence[Reference], parts: Parts) -> list[bytes]:
        """Return the bytes of the media that a pack refers to; its `parts` name its dataset."""
        dataset = _folder_of(parts["__sources__"][0]) if parts.get("__sources__") else ""
        if dataset not in self._datasets:
            self._datasets[dataset] = ReferencedMediaReader(dataset, self._root)
        return self._datasets[dataset].read(references, parts)


def _folder_of(source: Any) -> str:
    """Return the folder of the shard that Energon read a sample from, by the sample's `__sources__` entry."""
    path = source.dataset_path
    return str((path / source.shard_name).parent if "/" in (source.shard_name or "") else path)
