"""Sizes from first bytes are Pillow's, or there are none: a wrong one is a wrong number of tokens."""

import contextlib
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin

from energon_pack.samples.media.image_probe import plain_image
from energon_pack.samples.media.medium import Media
from energon_pack.samples.media.probe import probe, probe_part
from energon_pack.samples.sample import Part
from energon_pack.samples.skip import Skip
from energon_pack.sources.storage import InMemory
from support.samples import picture


class Counting(InMemory):
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
    file = InMemory(b"before" + data + b"\xff\xd9 after", "")
    return plain_image(file, 6, len(data))


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
@settings(deadline=None, max_examples=1000)
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
        probe_part(InMemory(b"hello, world", ""), Part("0.jpg", 0, 12))


def test_a_jpeg_is_measured_from_both_its_ends() -> None:
    """The checksum reads 1,024 bytes at each end, too. More was read, and was most of all that measuring read."""
    data = picture(400, 300, quality=95)
    file = Counting(data)
    assert plain_image(file, 0, len(data)) == Media("image", 400, 300, "jpg")
    assert file.reads == [(0, 1024), (len(data) - 1024, 1024)]
    profile = Counting(saved("JPEG", "RGB", icc_profile=bytes(2000)))
    assert plain_image(profile, 0, profile.size) is not None
    assert profile.reads[:2] == [(0, 1024), (0, min(profile.size, 4096))]
