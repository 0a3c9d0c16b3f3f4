"""Images that are decoded only when their pixels are needed: a shuffle buffer or a pipe holds the file's bytes."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from PIL import Image

from energon_pack.samples.media.image import open_image, png_chunks, upright_size


class LazyImage(Image.Image):
    """An upright RGB image whose pixels are decoded when they are first needed.

    Until then it holds the bytes of its file; then it becomes a plain image. A file that can't be decoded, or that is
    missing (`data` is None), raises an `OSError` with the image's name at that moment.

    It works with Pillow's methods, `numpy.asarray` and pickle. Code that reads `im`, the pixels in C, must call `load`.
    """

    def __init__(self, data: bytes | None, name: str):
        super().__init__()
        self._data, self._name = data, name
        self._mode = "RGB"

    @property
    def size(self) -> tuple[int, int]:
        """Return width and height, from the header."""
        if self._size == (0, 0):
            with self._named():
                file = io.BytesIO(self._bytes())
                with Image.open(file) as image:
                    self._size = upright_size(image, png_chunks(image, io.BytesIO(self._bytes())))
        return self._size

    def load(self) -> Any:
        """Decode the file and become a plain image; Pillow's methods call this before they read pixels."""
        with self._named():
            image = open_image(self._bytes())
        self.__class__ = Image.Image  # type: ignore[assignment]
        self.__dict__ = image.__dict__
        return self.load()

    def __reduce__(self) -> Any:
        return LazyImage, (self._data, self._name)

    def __repr__(self) -> str:
        """Describe the image without reading its header: Energon prints failed samples, which may be damaged."""
        return f"<LazyImage {self._name}>"

    def _bytes(self) -> bytes:
        if self._data is None:
            raise OSError("missing from its pack")
        return self._data

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # damaged bytes make Pillow's plugins raise anything
            raise OSError(f"{self._name}: {str(error) or type(error).__name__}") from None
