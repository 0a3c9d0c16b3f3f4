"""What is trained of a packed dataset, by its tokens and its media: two datasets are compared by it."""

from collections import Counter
from pathlib import Path
from typing import Any

from PIL import Image

from energon_pack.samples.pack_reader import PackMembers
from support.packed import json_lines, samples

#: token ids, weights of their labels, and the media: pixels, or bytes
Trained = tuple[tuple[int, ...], tuple[float, ...], tuple[Any, ...]]


def trained(folder: Path) -> dict[str, Trained]:
    """Return every member of a dataset by its sample's id."""
    members = {}
    for parts in samples(folder).values():
        for member in PackMembers(parts, lambda *_: []):
            assert member.tokens is not None
            assert member.sample_id not in members
            media = tuple(_content(medium) for of_kind in member.media.values() for medium in of_kind)
            members[member.sample_id] = tuple(member.tokens.ids.tolist()), tuple(member.tokens.token_weights), media
    return members


def _content(medium: Any) -> Any:
    return (medium.size, medium.tobytes()) if isinstance(medium, Image.Image) else medium


def skipped(folder: Path) -> dict[str, int]:
    """Return how many samples the ledger has under each reason."""
    return dict(Counter(line["reason"] for line in json_lines(folder / "skipped.jsonl")))
