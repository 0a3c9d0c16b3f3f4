"""Sizes from first bytes are Pillow's, or there are none: a wrong one is a wrong number of tokens."""

import contextlib
import copy
import io
import pickle
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps, PngImagePlugin

from energon_pack.samples.media.image import decode_image
from energon_pack.samples.media.image_probe import probe_without_pillow
from energon_pack.samples.media.lazy_image import LazyImage
from energon_pack.samples.media.medium import Media
from energon_pack.samples.media.read_media import probe, probe_part
from energon_pack.samples.sample import Part
from energon_pack.samples.skip import Skip
from energon_pack.sources.storage import InMemoryFile
from support.samples import picture


class Counting(InMemoryFile):
    """Remembers what was read."""

    def __init__(self, data: bytes):
        super().__init__(data, "")
        self.reads: list[tuple[int, int]] = []

    def read(self, offset: int, size: int) -> bytes:
        self.reads.append((offset, size))
        return super().read(offset, size)


MODES = {
    "JPEG": ["L", "RGB", "CMYK"],
    "PNG": ["1", "L", "LA", "I;16", "P", "RGB", "RGBA"],
    "WEBP": ["RGB", "RGBA"],
}


def found_plain(data: bytes) -> Media | None:
    file = InMemoryFile(b"before" + data + b"\xff\xd9 after", "")
    return probe_without_pillow(file, 6, len(data))


def found_by_pillow(data: bytes) -> Media | None:
    with contextlib.suppress(Skip):
        return probe(io.BytesIO(data))
    return None


def saved(format: str, mode: str, size: tuple[int, int] = (40, 30), **save: object) -> bytes:
    file = io.BytesIO()
    picture = Image.linear_gradient("L").resize(size)
    (picture.convert("I").convert(mode) if mode == "I;16" else picture.convert("RGB").convert(mode)).save(
        file, format, **save
    )
    return file.getvalue()


def images() -> Iterator[bytes]:
    info = PngImagePlugin.PngInfo()
    info.add_text("Software", "a program")
    odd = PngImagePlugin.PngInfo()
    odd.add_text("Raw profile type exif", "\n\n\n" + "00" * 20)
    behind = PngImagePlugin.PngInfo()
    behind.add_itxt("XML:com.adobe.xmp", '<x tiff:Orientation="6"/>')
    for format, modes in MODES.items():
        for mode in modes:
            yield saved(format, mode)
    yield from (saved("JPEG", "RGB", progressive=True), saved("JPEG", "RGB", icc_profile=b"p" * 300, comment=b"c"))
    yield saved("JPEG", "RGB", xmp=b'http://ns.adobe.com/xap/1.0/\0<x tiff:Orientation="6"/>')
    yield from (saved("PNG", "RGB", pnginfo=info, dpi=(72, 72)), saved("PNG", "P", transparency=0))
    yield from (saved("PNG", "RGB", pnginfo=odd), saved("PNG", "RGB", pnginfo=behind))
    yield from (saved("PNG", "RGB", icc_profile=b"p" * 300), saved("PNG", "L", transparency=7))
    yield from (saved("WEBP", "RGB", lossless=True), saved("WEBP", "RGBA", exif=Image.Exif(), icc_profile=b"p"))
    yield saved("PNG", "RGB", save_all=True, append_images=[Image.new("RGB", (40, 30))])


IMAGES = list(images())


@pytest.mark.parametrize(("format", "mode"), [(format, mode) for format in MODES for mode in MODES[format]])
def test_plain_images_need_no_pillow(format: str, mode: str) -> None:
    """Else it would be right, and no faster."""
    for size in ((1, 1), (40, 30), (700, 500)):
        data = saved(format, mode, size)
        if (format, mode) != ("WEBP", "RGBA"):
            assert found_plain(data) is not None
        assert found_plain(data) in (None, found_by_pillow(data))


def test_what_is_written_about_a_png_need_not_be_exif() -> None:
    info = PngImagePlugin.PngInfo()
    info.add_text("Software", "a program")
    assert found_plain(saved("PNG", "RGB", pnginfo=info)) == Media("image", 40, 30, "png")
    info.add_text("Anything", "")
    assert found_plain(saved("PNG", "RGB", pnginfo=info)) is None


@pytest.mark.parametrize("format", MODES)
def test_whatever_could_turn_an_image_is_left_to_pillow(format: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    assert found_plain(picture(40, 30, format, exif=exif)) is None


def test_bombs_are_left_to_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40 * 30 - 1)
    assert found_plain(picture()) is None


@pytest.mark.parametrize("data", [saved(format, "RGB") for format in MODES])
def test_the_first_bytes_alone_are_no_image(data: bytes) -> None:
    assert all(found_plain(data[:length]) is None for length in range(60))


@given(
    data=st.sampled_from(IMAGES).flatmap(
        lambda data: st.builds(
            lambda at, cut, noise, inserted: data[:at] + noise + (data[at:] if inserted else data[at + cut :]),
            st.integers(0, min(len(data), 300)) | st.integers(max(0, len(data) - 40), len(data)),
            st.integers(0, 4),
            st.binary(max_size=4) | st.sampled_from([b"\xff", b"\0", b"\xff\xe1", b"\xff\xda", b"IEND", b"tEXt"]),
            st.booleans(),
        )
    )
)
@settings(deadline=None, max_examples=300)
def test_damaged_bytes_are_pillows_matter_or_make_no_difference(data: bytes) -> None:
    assert found_plain(data) in (None, found_by_pillow(data))


@pytest.mark.parametrize("folder", ["bad", "wds/image_demo", "wds/image_probe"])
def test_real_images(real: Path, folder: str) -> None:
    for path in sorted((real / folder).glob("*.tar")):
        with contextlib.suppress(tarfile.ReadError), tarfile.open(path) as tar:
            for member in tar:
                if member.isreg() and not member.name.endswith(".json"):
                    file = tar.extractfile(member)
                    data = file.read() if file else b""
                    assert found_plain(data) in (None, found_by_pillow(data)), member.name


def test_a_part_that_is_no_image_is_named() -> None:
    with pytest.raises(Skip, match=r"0\.jpg: no known image"):
        probe_part(InMemoryFile(b"hello, world", ""), Part("0.jpg", 0, 12))


def test_a_jpeg_is_measured_from_both_its_ends() -> None:
    """The checksum reads 1,024 bytes at each end, too. More was read, and was most of all that measuring read."""
    data = picture(400, 300, quality=95)
    file = Counting(data)
    assert probe_without_pillow(file, 0, len(data)) == Media("image", 400, 300, "jpg")
    assert file.reads == [(0, 1024), (len(data) - 1024, 1024)]
    profile = Counting(saved("JPEG", "RGB", icc_profile=bytes(2000)))
    assert probe_without_pillow(profile, 0, profile.size) is not None
    assert profile.reads[:2] == [(0, 1024), (0, min(profile.size, 4096))]


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


def image_file(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("data", FILES.values(), ids=FILES)
def test_what_a_header_tells_needs_no_pixels(data: bytes) -> None:
    image, plain = LazyImage(data, "x"), decode_image(data)
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
    "save": image_file,
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
    ours, plain = result(use(LazyImage(data, "x"))), result(use(decode_image(data)))
    assert np.array_equal(ours, plain) if isinstance(plain, np.ndarray) else ours == plain


def test_once_decoded_it_is_a_plain_image() -> None:
    image = LazyImage(picture(40, 30), "x")
    image.load()
    assert is_decoded(image)
    assert image.tobytes() == decode_image(picture(40, 30)).tobytes()


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
