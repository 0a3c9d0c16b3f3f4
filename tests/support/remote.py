"""A processor of remote code, as such are written: its own call, of the older kind, in a file beside the settings."""

import json
from pathlib import Path
from typing import Any

from support.processors import change, llava_next

#: `{images}`: what makes tensors of images
CODE = '''\
import numpy as np
import torch
from transformers import BatchFeature, ProcessorMixin
from transformers.image_processing_base import ImageProcessingMixin


class TinyImages(ImageProcessingMixin):
    """8 × 8 pixels an image, or two of them side by side for one that is wider than high."""

    model_input_names = ["pixel_values"]

    def __init__(self, side=8, **settings):
        super().__init__(**settings)
        self.side = side

    def __call__(self, images, return_tensors=None, **settings):
        tiles = [tile for image in images for tile in self.tiles(image)]
        return BatchFeature({{"pixel_values": torch.stack(tiles)}})

    def tiles(self, image):
{images}
        wide = 2 if pixels.shape[2] > pixels.shape[1] else 1
        size = (self.side, self.side * wide)
        small = torch.nn.functional.interpolate(pixels[None].float(), size=size)[0] / 255
        return small.split(self.side, dim=2)


class TinyProcessor(ProcessorMixin):
    def __init__(self, image_processor=None, tokenizer=None, chat_template=None, **settings):
        self.image_token = "<image>"
        self.image_token_id = tokenizer.convert_tokens_to_ids("<image>")
        super().__init__(image_processor, tokenizer, chat_template=chat_template)

    def __call__(self, images=None, text=None, return_tensors=None, text_kwargs=None, **settings):
        texts = [text] if isinstance(text, str) else list(text)
        made = {{}}
        if images:
            made = self.image_processor(images)
            counts = iter([16 * len(self.image_processor.tiles(image)) for image in images])
            for i, one in enumerate(texts):
                first, *rest = one.split("<image>")
                texts[i] = first + "".join("<image>" * next(counts) + more for more in rest)
        return BatchFeature({{**self.tokenizer(texts, **(text_kwargs or {{}})), **made}}, tensor_type=return_tensors)
'''
#: takes tensors without values, too
OF_TENSORS = """\
        if not isinstance(image, torch.Tensor):
            image = torch.from_numpy(np.asarray(image.convert("RGB")).copy()).permute(2, 0, 1)
        pixels = image"""
#: takes pictures alone
OF_PICTURES = """\
        pixels = torch.from_numpy(np.asarray(image.convert("RGB")).copy()).permute(2, 0, 1)"""


def write_remote(folder: Path, images: str = OF_TENSORS, code: str = CODE) -> Path:
    """The folder of a processor whose class stands in a file of its own."""
    llava_next(folder)
    return add_code(folder, code.format(images=images))


def add_code(folder: Path, code: str) -> Path:
    """Put the code of a `TinyProcessor` into a processor's folder, and name it in the settings."""
    (folder / "processing_tiny.py").write_text(code)
    auto = {"AutoProcessor": "processing_tiny.TinyProcessor", "AutoImageProcessor": "processing_tiny.TinyImages"}
    own: dict[str, Any] = {"processor_class": "TinyProcessor", "auto_map": auto}
    (folder / "processor_config.json").write_text(json.dumps(own))
    (folder / "preprocessor_config.json").write_text(json.dumps({**own, "image_processor_type": "TinyImages"}))
    change(folder / "tokenizer_config.json", processor_class="TinyProcessor")
    return folder
