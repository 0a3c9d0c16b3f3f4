"""Images whose pixels are decoded where they are needed: not in a shuffle buffer or on the way between processes."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from PIL import Image

from energon_pack.samples.media.image import open_image, png_chunks, upright_size


class LazyImage(Image.Image):
    """An upright RGB image whose pixels are decoded when something first asks for them.

    Until then it is the bytes of its file; then it becomes a plain image. A file that can't be decoded, or that is
    missing (`data` is None), is an `OSError` with the image's name, there and then.

    It is for Pillow's methods, `numpy.asarray` and pickle; what reads `im`, the pixels in C, has to `load` it before.
    """

    def __init__(self, data: bytes | None, name: str):
        super().__init__()
        self._data, self._name = data, name
        self._mode = "RGB"

    @property
    def size(self) -> tuple[int, int]:
        """Width and height by the header."""
        if self._size == (0, 0):
            with self._named():
                file = io.BytesIO(self._bytes())
                with Image.open(file) as image:
                    self._size = upright_size(image, png_chunks(image, io.BytesIO(self._bytes())))
        return self._size

    def load(self) -> Any:
        """Decode it, and become a plain image: Pillow's methods call this before they look at pixels."""
        with self._named():
            image = open_image(self._bytes())
        self.__class__ = Image.Image  # type: ignore[assignment]
        self.__dict__ = image.__dict__
        return self.load()

    def __reduce__(self) -> Any:
        return LazyImage, (self._data, self._name)

    def __repr__(self) -> str:
        """Reads no header: Energon prints samples that failed, damaged ones too."""
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
