"""Images: one kind of media."""

import math
from typing import TYPE_CHECKING, Any, BinaryIO

from energon_pack.samples.media.medium import Media, MediaFormat, Medium, first_bytes_pattern

if TYPE_CHECKING:
    import numpy as np

_RANDOM_SIDES = (32, 1500)  # pixels of random images
_MAX_ASPECT = 9


class Image(Medium):
    """Images as a kind of media; sizes are those after the EXIF orientation is applied."""

    kind, noun, token_type = "image", "an image", 1
    models = ("qwen3_vl", "internvl3_5", "gemma3", "llava_onevision")
    argument, parts = "images", ("image_processor",)
    is_visual = True
    fields = ("width", "height")
    has_picture, colour = True, "yellow"
    formats = (
        MediaFormat("image", "jpg", first_bytes_pattern(rb"\xff\xd8\xff"), also=("jpeg",)),
        MediaFormat("image", "png", first_bytes_pattern(rb"\x89PNG\r\n\x1a\n")),
        MediaFormat("image", "gif", first_bytes_pattern(rb"GIF8[79]a")),
        MediaFormat("image", "webp", first_bytes_pattern(rb"RIFF....WEBP")),
        MediaFormat("image", "bmp", first_bytes_pattern(rb"BM")),
        MediaFormat("image", "tif", first_bytes_pattern(rb"II\*\0|MM\0\*|II\+\0|MM\0\+"), also=("tiff",)),
        MediaFormat("image", "avif", first_bytes_pattern(rb"....ftyp(avi[fs]|mif1|msf1)")),
    )
    example = Media("image", 640, 480)

    def probe(self, file: BinaryIO, container: MediaFormat | None = None) -> Media:
        """Return the size of an image in any format that Pillow knows; raises UnidentifiedImageError if it is none."""
        from energon_pack.samples.media.image_probe import probe_image

        return probe_image(file)

    def defect(self, data: bytes, medium: Media) -> str:
        from energon_pack.samples.media.image import decode_image

        decode_image(data)
        return ""

    def loaded(self, value: Any, name: str) -> Any:
        """Return an image that is decoded, upright and RGB, when it is used; `value`: bytes, or an image of Pillow.

        Any other value is returned unchanged.
        """
        from PIL import Image as Pillow

        from energon_pack.samples.media.lazy_image import LazyImage

        is_raw = value is None or (isinstance(value, (bytes, Pillow.Image)) and not isinstance(value, LazyImage))
        return LazyImage(value, name) if is_raw else value

    def said(self, medium: Media) -> str:
        return f"an image of {self.size(medium)}"

    def size(self, medium: Media) -> str:
        return f"{medium.width}×{medium.height}"

    def blank(self, medium: Media) -> Any:
        from PIL import Image

        return Image.new("RGB", (medium.width, medium.height))

    def drawn(self, rng: "np.random.Generator") -> Media:
        return Media(self.kind, *random_size(rng, *_RANDOM_SIDES))

    def noise(self, medium: Media, rng: "np.random.Generator") -> Any:
        import numpy as np
        from PIL import Image

        return Image.fromarray(rng.integers(0, 256, (medium.height, medium.width, 3), np.uint8))


def random_size(rng: "np.random.Generator", least: int, most: int) -> tuple[int, int]:
    """Draw a random width and height, in pixels from `least` to `most`."""
    width = round(math.exp(rng.uniform(math.log(least), math.log(most))))
    aspect = math.exp(rng.uniform(-math.log(_MAX_ASPECT), math.log(_MAX_ASPECT)))
    return width, min(max(round(width * aspect), least), most)
