"""From the parts of a pack to the fields of LoongForge's packed samples. Energon runs this file.

Images and videos are what the task encoder's decoder made of them. LoongForge takes any list for media, an empty one
too, and refuses packs with both kinds: a member without media has None, and so has a pack.
"""

import json
from typing import Any


def sample_loader(sample: dict[str, Any]) -> dict[str, Any]:
    """Fields of a PackedChatMixSample; raises KeyError if a medium of the pack is missing."""
    pack = _json(sample)
    return {"packed_messages": pack["messages"], **_media(sample, pack, "packed_images", "packed_videos")}


def sample_loader_of_turns(sample: dict[str, Any]) -> dict[str, Any]:
    """Fields of a PackedMultiMixQASample: the questions and the answers of each member; raises as `sample_loader`."""
    pack = _json(sample)
    texts = [[turn["content"] for turn in member["messages"]] for member in pack["messages"]]
    turns = {"contexts": [member[::2] for member in texts], "answers": [member[1::2] for member in texts]}
    return {**_media(sample, pack, "images", "videos"), **turns}


def part_filter(part: str) -> bool:
    """All parts are read."""
    return True


def _json(sample: dict[str, Any]) -> dict[str, Any]:
    return sample["json"] if isinstance(sample["json"], dict) else json.loads(sample["json"])


def _media(sample: dict[str, Any], pack: dict[str, Any], *fields: str) -> dict[str, list[Any] | None]:
    """Those of each kind, a list for each member: `s003.i00.jpg` is an image, `s003.v00.mp4` a video."""
    found: dict[str, list[Any] | None] = {}
    for field, letter in zip(fields, "iv", strict=True):
        names = [[name for name in member if name.split(".")[1][0] == letter] for member in pack["media_files"]]
        media = [[sample[name] for name in member] or None for member in names]
        found[field] = media if any(media) else None
    return found
