"""Turn the parts of a pack into the fields of LoongForge's PackedChatMixSample. Energon runs this file.

Images and videos have been decoded by the task encoder's decoder.
"""

import json
from typing import Any


def sample_loader(sample: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a sample: a list with one entry a member, or None if no member has such media.

    LoongForge counts every list as media, even an empty one, and refuses packs with both kinds. Its encoder needs None
    for a member without media.

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
    """Accept every part of a sample."""
    return True


def _media(sample: dict[str, Any], members: list[list[str]], kind: str) -> list[Any] | None:
    """Return the media of one kind: `s003.i00.jpg` is an image."""
    found = [[sample[name] for name in names if name.split(".")[1][0] == kind] or None for names in members]
    return found if any(found) else None
