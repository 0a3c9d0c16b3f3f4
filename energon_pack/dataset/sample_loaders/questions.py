"""From the parts of a pack to the fields of LoongForge's PackedMultiMixQASample. Energon runs this file.

Images and videos are what the task encoder's decoder made of them.
"""

import json
from typing import Any


def sample_loader(sample: dict[str, Any]) -> dict[str, Any]:
    """Fields of a sample, a list each with one entry a member: its media, its question, its answer.

    Raises:
        KeyError: a medium of the pack is missing.
        ValueError: a member is not one question and one answer.
    """
    pack = sample["json"] if isinstance(sample["json"], dict) else json.loads(sample["json"])
    turns = [[message["content"] for message in member["messages"]] for member in pack["messages"]]
    if wrong := [number for number, texts in enumerate(turns) if len(texts) != 2]:
        raise ValueError(f"{sample.get('__key__')}: member {wrong[0]} is not one question and one answer")
    return {
        "images": _media(sample, pack["media_files"], "i"),
        "videos": _media(sample, pack["media_files"], "v"),
        "contexts": [question for question, _ in turns],
        "answers": [answer for _, answer in turns],
    }


def part_filter(part: str) -> bool:
    """All parts are read."""
    return True


def _media(sample: dict[str, Any], members: list[list[str]], kind: str) -> list[list[Any]]:
    """Those of one kind: `s003.i00.jpg` is an image."""
    return [[sample[name] for name in names if name.split(".")[1][0] == kind] for names in members]
