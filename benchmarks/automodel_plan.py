"""What NeMo Automodel's plan comes to on the samples that energon_pack packs: `python benchmarks/automodel_plan.py
PROCESSOR TARS TARS …`, where nemo_automodel 0.7 is installed.

Its own classes plan packs of 4,096 tokens and make each of them; what they leave out on the way is counted. `exact`
gives its `_text_tokens` the length of the whole sample less its media, and the sizes of images in `mm_inputs_meta`.
"""

import argparse
import io
from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from rich.console import Console
from rich.table import Table

from energon_pack.samples.settings import ReadSettings
from energon_pack.sources.reader import SourceReader
from energon_pack.sources.sample import read_sample
from energon_pack.sources.settings import SourceConfig
from energon_pack.sources.source_file import IndexRow, rows_of
from energon_pack.sources.source_path import find_source
from energon_pack.templates.full_processor import prepare_torchvision

prepare_torchvision()  # before the imports that ask for it
from nemo_automodel.components.datasets.vlm.datasets import PreTokenizedDatasetWrapper  # noqa: E402
from nemo_automodel.components.datasets.vlm.neat_packing_vlm import neat_pack_dataset_vlm  # noqa: E402
from transformers import AutoProcessor  # noqa: E402

PACK_SIZE = 4096


def conversations(folders: Sequence[str]) -> list[dict[str, Any]]:
    """Samples of tars in the form that Automodel takes."""
    found = []
    with SourceReader() as reader:
        for shard in (shard for folder in folders for shard in find_source(SourceConfig(), folder).shards):
            for row in rows_of(shard.index(), IndexRow):
                sample = read_sample(reader, shard, row, ReadSettings())
                with open(shard.path, "rb") as file:
                    pictures: list[Image.Image] = []
                    for part in sample.parts:
                        file.seek(part.offset)
                        pictures.append(Image.open(io.BytesIO(file.read(part.size))))
                found.append({"conversation": [as_theirs(message, pictures) for message in sample.messages]})
    return found


def as_theirs(message: dict[str, Any], pictures: list[Image.Image]) -> dict[str, Any]:
    """A message whose placeholders are parts, taking its pictures from the front."""
    first, *others = message["content"].split("<image>")
    content: list[dict[str, Any]] = [{"type": "text", "text": first}] if first else []
    for text in others:
        content.append({"type": "image", "image": pictures.pop(0)})
        content += [{"type": "text", "text": text}] if text else []
    return {"role": message["role"], "content": content}


class Kept(PreTokenizedDatasetWrapper):
    """Each sample is encoded once; packs are made of its tokens alone."""

    def __init__(self, *given: Any, **settings: Any):
        super().__init__(*given, **settings)
        self._kept: dict[int, dict[str, torch.Tensor]] = {}

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if index not in self._kept:
            sample = super().__getitem__(index)
            self._kept[index] = {name: sample[name] for name in ("input_ids", "attention_mask", "labels")}
        return dict(self._kept[index])


def with_lengths(raw: list[dict[str, Any]], samples: Kept, image_token: int) -> list[dict[str, Any]]:
    """Raw samples that say how long they are."""
    found = []
    for number, sample in enumerate(raw):
        ids = samples[number]["input_ids"]
        images = [part["image"] for turn in sample["conversation"] for part in turn["content"] if "image" in part]
        meta = {"images_meta": [[image.height, image.width] for image in images]} if images else None
        exact = {"_text_tokens": int((ids != image_token).sum()) if images else len(ids), "mm_inputs_meta": meta}
        found.append({**sample, **exact})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("processor")
    parser.add_argument("tars", nargs="+")
    given = parser.parse_args()
    processor = AutoProcessor.from_pretrained(given.processor)
    raw = conversations(given.tars)
    image_token = processor.tokenizer.convert_tokens_to_ids(processor.image_token)
    table = Table("fake images", "max_length", "lengths", "packing_ratio", "packs", f"of {len(raw):,} in packs", "fill")
    for fake, max_length in ((True, None), (True, PACK_SIZE), (False, None)):
        samples = Kept(raw, processor, max_length=max_length, inject_fake_images=fake)
        for exact in (False, True):
            stated = with_lengths(raw, samples, image_token) if exact else raw
            for ratio in (1.0, 0.9):
                packs = neat_pack_dataset_vlm(
                    samples, PACK_SIZE, ds_raw=stated, packing_ratio=ratio, processor=processor
                )
                made = [packs[number]["attention_mask"] for number in range(len(packs))]
                num = sum(int(ids.max()) for ids in made if len(ids))
                fill = sum(int((ids > 0).sum()) for ids in made) / (len(made) * PACK_SIZE)
                how = "exact" if exact else "estimated"
                table.add_row(str(fake), str(max_length), how, str(ratio), str(len(made)), f"{num:,}", f"{fill:.1%}")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
