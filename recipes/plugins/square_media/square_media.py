"""What is done to images first, in a package of its own: `pip install recipes/plugins/square_media`, and then

    energon-pack +model=qwen2_5_vl media.image=square

The middle of each image is cut out, as large a square as there is.
"""

from typing import Any

from PIL import Image


class Square:
    """Its `size` is what packing measures; its `apply` does the same to the pixels in training."""

    def __init__(self, media: Any, factor: int):
        pass

    def size(self, width: int, height: int) -> tuple[int, int]:
        """Width and height afterwards, in pixels."""
        return min(width, height), min(width, height)

    def apply(self, image: Image.Image) -> Image.Image:
        """An image of that size."""
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        return image.crop((left, top, left + side, top + side))
