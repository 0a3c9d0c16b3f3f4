"""From the parts of a pack to the fields of LoongForge's PackedChatMixSample. Energon runs this file.

Images and videos are what the task encoder's decoder made of them.
"""

import json
from typing import Any


def sample_loader(sample: dict[str, Any]) -> dict[str, Any]:
    """Fields of a sample: a list with one entry a member, or None where no member has such media.

    LoongForge takes any list for media, an empty one too, and refuses packs with both kinds; of a member without, its
    encoder wants None.

    Raises:
        KeyError: a medium of the pack is missing.
    """
    pack = sample["json"] if isinstance(sample["json"], dict) else json.loads(sample["json"])
    return {
        "packed_messages": pack["messages"],
        "packed_images": _media(sample, pack["media_files"], "i"),
        "packed_videos": _media(sample, pack["media_files"], "v"),
    }


def part_filter(part: str) -> bool:
    """All parts are read."""
    return True


def _media(sample: dict[str, Any], members: list[list[str]], kind: str) -> list[Any] | None:
    """Those of one kind: `s003.i00.jpg` is an image."""
    found = [[sample[name] for name in names if name.split(".")[1][0] == kind] or None for names in members]
    return found if any(found) else None
