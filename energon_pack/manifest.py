"""Names that the packer writes and training reads."""

import json
from pathlib import Path
from typing import Any

#: Version of the packs' JSON (`_meta.format`) and of `energon_pack.json`.
FORMAT = 1

#: Energon's folder of metadata in a dataset, and this package's file in it.
META_FOLDER = ".nv-meta"
MANIFEST = "energon_pack.json"

#: Flavour → its sample class in `energon_pack.flavors`, and the subflavor `sample_type` that cookers select by.
FLAVORS = {
    "packed_multi_mix_qa": ("PackedMultiMixQASample", "packed_chat_mix"),
    "packed_captioning": ("PackedCaptioningSample", "packed_captioning"),
    "multi_mix_qa": ("MultiMixQASample", "multi_mix_qa"),
}


def read_manifest(dataset: Path) -> dict[str, Any]:
    """energon_pack.json of a packed dataset.

    Raises:
        FileNotFoundError: the folder is not one.
    """
    manifest: dict[str, Any] = json.loads((dataset / META_FOLDER / MANIFEST).read_text())
    return manifest
