"""From the parts of a pack to the fields of LoongForge's PackedChatMixSample. Energon runs this file.

Images and videos are what the task encoder's decoder made of them.
"""

import json
from typing import Any


def sample_loader(sample: dict[str, Any]) -> dict[str, Any]:
    """Fields of a sample, a list each with one entry a member.

    Raises:
        KeyError: a medium of the pack is missing.
    """
    pack = sample["json"] if isinstance(sample["json"], dict) else json.loads(sample["json"])
    return {
        "packed_messages": pack["messages"],
        "packed_images": [_media(sample, names, "i") for names in pack["media_files"]],
        "packed_videos": [_media(sample, names, "v") for names in pack["media_files"]],
    }


def part_filter(part: str) -> bool:
    """All parts are read."""
    return True


def _media(sample: dict[str, Any], names: list[str], kind: str) -> list[Any]:
    """Those of one kind: `s003.i00.jpg` is an image."""
    return [sample[name] for name in names if name.split(".")[1][0] == kind]
