"""The demo as a user's own dataset of conversations."""

import io
import json
from pathlib import Path
from typing import Any

from PIL import Image

from support.packed import samples


def conversations(source: Path) -> list[dict[str, Any]]:
    """A list of them whose images are Pillow's, or bytes."""
    found = []
    for number, parts in enumerate(samples(source).values()):
        names = [name for name in parts if name.rpartition(".")[2] in ("jpg", "png")]
        media: list[Any] = [parts[name] for name in names]
        item = json.loads(parts["json"])
        item.pop("name", None)
        item["images"] = media if number % 2 else [Image.open(io.BytesIO(data)) for data in media]
        found.append(item)
    return found
