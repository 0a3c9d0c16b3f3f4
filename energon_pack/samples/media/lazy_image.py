"""Images that are decoded only when their pixels are needed: a shuffle buffer or a pipe holds the file's bytes."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from PIL import Image

from energon_pack.samples.media.image import PLAIN_LOOK, RgbConversion, opened_image, to_rgb
from energon_pack.samples.media.medium import Media


class LazyImage(Image.Image):
    """An upright RGB image whose pixels are decoded when they are first needed.

    Until then it holds the bytes of its file, or an image of Pillow in any mode; then it becomes a plain image. A file
    that can't be decoded, or that is missing (`data` is None), raises an `OSError` with its name at that moment.

    It works with Pillow's methods, `numpy.asarray` and pickle. Code that reads `im`, the pixels in C, must call `load`.
    """

    def __init__(self, data: bytes | Image.Image | None, name: str):
        super().__init__()
        self._data, self._name = data, name
        self._mode = "RGB"
        self._medium: Media | None = None

    @property
    def medium(self) -> Media:
        """The image's upright size and its format, from the header."""
        if self._medium is None:
            # late: decoding alone needs no reader of headers
            from energon_pack.samples.media.image_probe import medium_of, png_chunk_names

            with self._named():
                image, file = self._opened(), io.BytesIO(self._data) if isinstance(self._data, bytes) else None
                self._medium = medium_of(image, None if file is None else png_chunk_names(image, file))
        return self._medium

    @property
    def size(self) -> tuple[int, int]:
        """Upright width and height in pixels, from the header."""
        return self.medium.width, self.medium.height

    def load(self) -> Any:
        """Decode the file and become a plain image; Pillow's methods call this before they read pixels."""
        self.decode(PLAIN_LOOK)
        return self.load()

    def decode(self, look: RgbConversion) -> None:
        """Decode the file and become a plain RGB image; `look`: how pixels become RGB."""
        with self._named():
            image = to_rgb(self._opened(), look, is_own=isinstance(self._data, bytes))
        self.__class__ = Image.Image  # type: ignore[assignment]
        self.__dict__ = image.__dict__

    def __reduce__(self) -> Any:
        return LazyImage, (self._data, self._name)

    def __repr__(self) -> str:
        """Describe the image without reading its header: Energon prints failed samples, which may be damaged."""
        return f"<LazyImage {self._name}>"

    def _opened(self) -> Image.Image:
        if self._data is None:
            raise OSError("missing from its pack")
        return opened_image(io.BytesIO(self._data)) if isinstance(self._data, bytes) else self._data

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # damaged bytes make Pillow's plugins raise anything
            raise OSError(f"{self._name}: {str(error) or type(error).__name__}") from None


def decode_if_lazy(image: Image.Image, look: RgbConversion) -> Image.Image:
    """Decode a lazy image as `look` says, and return it; an image that is decoded already stays unchanged."""
    if isinstance(image, LazyImage):
        image.decode(look)
    return image
