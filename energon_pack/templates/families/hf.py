"""Any processor of transformers: its own code says what stands for an image.

Only sizes matter to it, so it is asked with a blank image of each size that comes up, once: exact, but far slower than
a family's rule, and each worker imports torch and transformers.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from PIL import Image

from energon_pack.errors import PackError
from energon_pack.samples.media.probe import Media
from energon_pack.samples.skip import Reason, Skip
from energon_pack.templates.families.rules import MediaRules, ProcessorSettings
from energon_pack.templates.torchvision_shim import prepare_torchvision


class HuggingFace(MediaRules):
    """Images of a model that has no family here."""

    def __init__(self, processor: ProcessorSettings):
        """Load the processor.

        Raises:
            PackError: it can't be loaded, or is not one of transformers' own for images.
        """
        prepare_torchvision()
        from transformers import AutoProcessor

        try:
            self._processor: Any = AutoProcessor.from_pretrained(processor.folder, **processor.kwargs)
        except Exception as error:  # any class of any processor may be behind it
            raise PackError(f"model.template=hf: {processor.folder} can't be loaded: {error}") from None
        token = getattr(self._processor, "image_token", None)
        if not isinstance(token, str) or not hasattr(self._processor, "_process_images"):
            name = type(self._processor).__name__
            raise PackError(f"model.template=hf: {name} is no processor of transformers for images and text")
        self.media_tokens = {"image": token}
        self.settings = {"image": processor.image, "processor": processor.processor}
        self._of_size = lru_cache(maxsize=100_000)(self._ask)

    def try_out(self) -> None:
        """Ask for an ordinary image.

        Raises:
            PackError: what fails now is no fault of any image.
        """
        try:
            self._ask(640, 480)
        except Exception as error:  # transformers' processors fail in many ways
            name, why = type(self._processor).__name__, " ".join(f"{type(error).__name__} {error}".split())
            raise PackError(
                f"model.template=hf: {name} can't be asked what stands for an image ({why[:200]}): images of its model"
                " can't be packed yet; +model=text packs texts"
            ) from None

    def expand(self, media: Media, frames: Sequence[int]) -> tuple[str, int]:
        try:
            return self._of_size(media.width, media.height)
        except Exception as error:  # what a processor refuses costs the sample
            raise Skip(Reason.UNREADABLE_MEDIA, f"{media.width}×{media.height} pixels: {error}") from None

    def _ask(self, width: int, height: int) -> tuple[str, int]:
        processor = self._processor
        settings = processor._merge_kwargs(tokenizer_init_kwargs=processor.tokenizer.init_kwargs)["images_kwargs"]
        _, texts = processor._process_images([[Image.new("RGB", (width, height))]], **settings)
        ids = processor.tokenizer(texts[0], add_special_tokens=False)["input_ids"]
        visual = set(processor.image_token_ids)
        return texts[0], sum(token in visual for token in ids)
