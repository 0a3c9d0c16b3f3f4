"""A lazy image is a plain one to whoever uses Pillow: sizes by the header, pixels when they are asked for."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from energon_pack.samples.media.image import open_image
from energon_pack.samples.media.lazy_image import LazyImage
from support.samples import picture

ON_ITS_SIDE = Image.Exif()
ON_ITS_SIDE[0x0112] = 6
FILES = {
    "jpeg": picture(40, 30),
    "turned": picture(40, 30, exif=ON_ITS_SIDE),
    "turned png": picture(40, 30, "PNG", exif=ON_ITS_SIDE),
    "webp": picture(40, 30, "WEBP"),
}


def is_decoded(image: Image.Image) -> bool:
    return type(image) is Image.Image


def saved(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("data", FILES.values(), ids=FILES)
def test_what_a_header_tells_needs_no_pixels(data: bytes) -> None:
    image, plain = LazyImage(data, "x"), open_image(data)
    assert (image.size, image.width, image.height) == (plain.size, plain.width, plain.height)
    assert (image.mode, image.getbands()) == (plain.mode, plain.getbands()) == ("RGB", ("R", "G", "B"))
    assert isinstance(image, Image.Image)
    assert not is_decoded(image)


def thumbnail(image: Image.Image) -> Image.Image:
    image.thumbnail((10, 10))
    return image


def painted(image: Image.Image) -> Image.Image:
    image.paste((1, 2, 3), (0, 0, 5, 5))
    return image


#: Methods of Pillow that image processors, transforms and people use, each on an image nothing has looked at yet.
USES: dict[str, Callable[[Image.Image], Any]] = {
    "asarray": np.asarray,
    "tobytes": Image.Image.tobytes,
    "convert": lambda image: image.convert("L"),
    "resize": lambda image: image.resize((14, 21), Image.Resampling.BICUBIC),
    "thumbnail": thumbnail,
    "crop": lambda image: image.crop((1, 2, 20, 30)),
    "transpose": lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    "copy": Image.Image.copy,
    "copy.copy": copy.copy,
    "copy.deepcopy": copy.deepcopy,
    "split": lambda image: image.split()[1],
    "getpixel": lambda image: image.getpixel((3, 4)),
    "paste": painted,
    "save": saved,
    "exif_transpose": ImageOps.exif_transpose,
    "load": lambda image: image.load()[2, 3],  # type: ignore[index]
    "verify": Image.Image.verify,
    "with": lambda image: image.__enter__().getpixel((0, 0)),
    "pickle": lambda image: pickle.loads(pickle.dumps(image)),
    "equal": lambda image: image == image.copy(),
}


def result(value: Any) -> Any:
    return (value.mode, value.size, value.tobytes()) if isinstance(value, Image.Image) else value


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("data", FILES.values(), ids=FILES)
def test_pixels_are_those_of_the_plain_image(data: bytes, use: Callable[[Image.Image], Any]) -> None:
    ours, plain = result(use(LazyImage(data, "x"))), result(use(open_image(data)))
    assert np.array_equal(ours, plain) if isinstance(plain, np.ndarray) else ours == plain


def test_once_decoded_it_is_a_plain_image() -> None:
    image = LazyImage(picture(40, 30), "x")
    image.load()
    assert is_decoded(image)
    assert image.tobytes() == open_image(picture(40, 30)).tobytes()


def test_on_the_way_between_processes_it_is_its_file() -> None:
    image = LazyImage(large := picture(2000, 2000), "x")
    sent = pickle.dumps(image)
    assert len(sent) < len(large) + 200
    assert not is_decoded(pickle.loads(sent))
    assert pickle.loads(sent).size == (2000, 2000)


@pytest.mark.parametrize("data", [None, b"no image", picture()[:200]], ids=["missing", "none", "cut"])
def test_what_can_not_be_decoded_is_named_where_it_is_asked_for(data: bytes | None) -> None:
    image = LazyImage(data, "p_0.s000.i00.jpg")
    assert repr(image) == "<LazyImage p_0.s000.i00.jpg>"
    for ask in (image.load, lambda: np.asarray(image), image.tobytes, lambda: image.resize((3, 3))):
        with pytest.raises(OSError, match=r"p_0\.s000\.i00\.jpg: "):
            ask()
