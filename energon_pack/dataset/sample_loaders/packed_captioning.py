"""From the parts of a pack to the fields of LLaVA-OneVision-2's PackedCaptioningSample. Energon runs this file.

Images are what the task encoder's decoder made of them.
"""

import io
import json
from typing import Any

import numpy as np


def sample_loader(sample: dict[str, Any]) -> dict[str, Any]:
    """Fields of a sample, a list each with one entry a member.

    Raises:
        KeyError: an image of the pack is missing.
    """
    pack = sample["json"] if isinstance(sample["json"], dict) else json.loads(sample["json"])
    sizes = [len(names) for names in pack["images"]]
    return {
        "images": [[sample[f"img{s}_{i}.jpg"] for i in range(size)] for s, size in enumerate(sizes)],
        "prompts": pack["prompts"],
        "captions": pack["captions"],
        "patch_positions": [[_array(sample.get(f"img{s}_{i}.npy")) for i in range(n)] for s, n in enumerate(sizes)],
        "fps": pack.get("fps"),
        "timestamp_decimal": pack.get("timestamp_decimal"),
    }


def part_filter(part: str) -> bool:
    """All parts are read."""
    return True


def _array(value: Any) -> Any:
    return np.load(io.BytesIO(value), allow_pickle=False) if isinstance(value, bytes) else value
