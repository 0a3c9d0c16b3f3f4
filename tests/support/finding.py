"""Find sources of one form, as `source=wds` and `source=jsonl` do."""

from collections.abc import Sequence
from typing import Any

from energon_pack.sources.find import Source
from energon_pack.sources.settings import SourceConfig
from energon_pack.sources.source_path import find_source


def find_shards(path: str | Sequence[str], split: str | None = None) -> Source:
    return find_source(SourceConfig(format="wds", split=split), path)


def find_lines(path: str | Sequence[str], media_root: str | None = None, **settings: Any) -> Source:
    """Find files of lines, and those that a meta file lists."""
    return find_source(
        SourceConfig(format="jsonl", media_root=media_root, **settings), [path] if isinstance(path, str) else path
    )
