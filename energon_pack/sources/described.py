"""Describe the form of a source in a line, by its files and by the first sample of each kind of file.

read as: Parquet, texts: user/assistant, images in cells; 12 files
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from energon_pack.errors import PackError, amount
from energon_pack.samples.dialects.rewrite import in_our_words
from energon_pack.samples.dialects.table import TURN_FIELDS, conversations
from energon_pack.samples.mapping import mapped
from energon_pack.samples.media.kinds import MEDIA_KEYS
from energon_pack.samples.sample import MESSAGE_KEYS
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Skip
from energon_pack.sources.inside import split_name
from energon_pack.sources.settings import Format
from energon_pack.sources.shard import JsonlShard, Shard, Source
from energon_pack.sources.storage import folder_of

_SIDES = ("role", "from", "content", "value", "user", "human", "question", "assistant", "gpt", "answer", "answers")
_NUM_TRIED = 4


def read_as(source: Source, settings: ReadSettings, num_samples: int | None = None) -> str:
    """Describe a source.

    Args:
        num_samples: the samples in the whole source; None: not known.
    """
    of_kind: dict[str, list[Shard]] = {}
    for shard in sorted(source.shards, key=lambda shard: [*Format].index(shard.format)):
        of_kind.setdefault(shard.called, []).append(shard)
    parts = [
        ", ".join([called, *_first(shards[0], settings), amount(len(shards), shards[0].noun)])
        for called, shards in of_kind.items()
    ]
    roots = Counter(s.media_root for s in source.shards if s.media_root and s.media_root != folder_of(s.path))
    parts += [f"media in {root}" for root, _ in roots.most_common(3)]
    return "; ".join([*parts, *([amount(num_samples, "sample")] if num_samples is not None else [])])


def _first(shard: Shard, settings: ReadSettings) -> Iterator[str]:
    """Describe what a file holds, by itself or by its first readable sample: its turns, and where its media are."""
    if shard.holds:
        yield shard.holds
    if not isinstance(shard, JsonlShard) or shard.holds:
        return
    try:
        values = [_value(shard, raw, settings) for raw in shard.first(_NUM_TRIED)]
    except (PackError, OSError):  # indexing reports what is wrong
        return
    for value in values:
        if turns := _turns(value):
            yield turns
            yield from _media(value)
            return


def _value(shard: JsonlShard, raw: bytes, settings: ReadSettings) -> Any:
    try:
        return in_our_words(mapped(shard.value(raw), settings), shard.own.reading or settings)
    except Skip:
        return None


def _turns(value: Any) -> str | None:
    if isinstance(value, list):
        value = {"messages": value}
    if not isinstance(value, dict):
        return None
    written = next(conversations(value, ReadSettings()), None)
    if written is None:
        return None
    turns = value[written.keys[0]] if written.name in (*MESSAGE_KEYS, *TURN_FIELDS) else None
    first = turns[0] if isinstance(turns, list) and turns else None
    sides = "/".join(side for side in _SIDES if side in first) or "objects" if isinstance(first, Mapping) else ""
    return f"{written.name}: {sides}" if sides else written.name


def _media(value: Any) -> Iterator[str]:
    for name in MEDIA_KEYS if isinstance(value, dict) else ():
        listed: Sequence[Any] = value[name] if isinstance(value.get(name), list) else [value.get(name)]
        if listed and listed[0]:
            first = listed[0]["path"] if isinstance(listed[0], dict) and "path" in listed[0] else listed[0]
            is_inside = isinstance(first, str) and split_name(first)[1] is not None
            yield f"{name} {'inside' if is_inside else 'in files'}"
