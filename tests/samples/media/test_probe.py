"""Header sizes are what a decoder comes to. A wrong size is a wrong number of tokens, found only in training."""

import contextlib
import io
import os
import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import EpsImagePlugin, Image, ImageOps

from energon_pack.samples.frames import load_patch_positions
from energon_pack.samples.media.image import decode_image
from energon_pack.samples.media.lazy_image import LazyImage
from energon_pack.samples.media.read_media import probe, probe_part
from energon_pack.samples.sample import Part
from energon_pack.samples.skip import Reason, Skip
from energon_pack.sources.storage import InMemoryFile
from support.samples import picture


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
def test_orientation_as_pillow_applies_it(format: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    gradient = Image.linear_gradient("L").resize((40, 30)).convert("RGB")
    gradient.save(file, format, exif=exif)
    data = file.getvalue()
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    found = probe(io.BytesIO(data))
    assert (found.width, found.height) == upright.size == ((40, 30) if orientation < 5 else (30, 40))
    assert decode_image(data).tobytes() == upright.convert("RGB").tobytes()
    assert LazyImage(data, "0").size == upright.size  # that of a TIFF was turned twice


@pytest.mark.parametrize("orientation", [1, 6])
def test_odd_exif_does_not_keep_an_image_from_training(orientation: int) -> None:
    """Valid JPEG, an EXIF field of a wrong type: what measuring accepts, training opens."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    exif[0x011A] = 72.0  # XResolution, a RATIONAL (5); made ASCII (2)
    data = bytearray(picture(40, 30, exif=exif))
    at = data.index(b"\x01\x1a\x00\x05" if b"MM" in data[:40] else b"\x1a\x01\x05\x00")
    data[at + 2 : at + 4] = b"\x00\x02" if b"MM" in data[:40] else b"\x02\x00"
    found = probe(io.BytesIO(data))
    assert (found.width, found.height) == decode_image(bytes(data)).size


def test_png_orientation_behind_the_pixels() -> None:
    """The eXIf chunk may come after IDAT: Pillow sees it only by decoding the whole image."""
    exif = Image.Exif()
    exif[0x0112] = 6
    plain, tagged = picture(40, 30, "PNG"), picture(40, 30, "PNG", exif=exif)
    at = tagged.index(b"eXIf") - 4
    size = int.from_bytes(tagged[at : at + 4], "big") + 12
    end = plain.index(b"IEND") - 4
    data = plain[:end] + tagged[at : at + size] + plain[end:]
    found = probe(io.BytesIO(data))
    assert (found.width, found.height) == (30, 40) == decode_image(data).size


def png_with(*behind: tuple[bytes, bytes]) -> bytes:
    """A PNG with chunks behind its pixels."""
    plain = picture(40, 30, "PNG")
    end = plain.index(b"IEND") - 4
    chunks = (struct.pack(">I", len(of)) + name + of + struct.pack(">I", zlib.crc32(name + of)) for name, of in behind)
    return plain[:end] + b"".join(chunks) + plain[end:]


@pytest.mark.parametrize(
    "chunk",
    [
        (b"zTXt", b"Comment\0\0" + zlib.compress(bytes(2_000_000))),
        (b"iTXt", b"parameters\0\1\0\0\0" + zlib.compress(bytes(2_000_000))),
        (b"pHYs", b"\0" * 3),
        (b"gAMA", b"\0"),
    ],
)
def test_what_stands_behind_the_pixels_of_a_png_may_cost_it(chunk: tuple[bytes, bytes]) -> None:
    """Pillow reads it with the pixels. Its header alone was read: the sample was packed, and training ended there."""
    data = png_with(chunk)
    with pytest.raises((ValueError, OSError, struct.error)):
        decode_image(data)
    for found in (probe, lambda file: probe_part(InMemoryFile(file.read(), ""), Part("0.png", 0, len(data)))):
        with pytest.raises(Skip, match="not a readable image"):
            found(io.BytesIO(data))


def test_what_stands_there_mostly_costs_nothing() -> None:
    data = png_with(
        (b"tEXt", b"Software\0a program"), (b"tIME", bytes(7)), (b"zTXt", b"Comment\0\0" + zlib.compress(b"x"))
    )
    assert probe(io.BytesIO(data)).width == 40 == decode_image(data).width


def test_a_damaged_body_shows_when_it_is_decoded() -> None:
    """As docs/media.md says: lengths cost no decoding, so a whole end is believed. `verify --decode` names the file."""
    data = bytearray(picture(60, 60, "PNG"))
    at = data.index(b"IDAT")
    size = int.from_bytes(data[at - 4 : at], "big") // 2
    data[at - 4 : at] = struct.pack(">I", size)
    cut = bytes(data[: at + 4 + size]) + bytes(4) + bytes(data[-12:])
    assert probe(io.BytesIO(cut)).width == 60
    with pytest.raises(OSError, match=r"0\.png: "):
        LazyImage(cut, "0.png").load()


def test_no_reader_of_pillow_starts_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An EPS named .jpg started Ghostscript on this machine while its size was read."""
    program = tmp_path / "gs"
    program.write_text(f"#!/bin/sh\necho 10 >> {tmp_path / 'started'}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 40 30\n%%EndComments\nshowpage\n"
    for read in (probe, lambda file: decode_image(file.read()), lambda file: LazyImage(file.read(), "0.jpg").size):
        with pytest.raises((Skip, OSError)):
            read(io.BytesIO(eps))
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("name", ["EPS", "IPTC", "WMF", "GRIB", "FITS"])
def test_readers_that_do_more_than_read_are_not_asked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.init()
    asked: list[bytes] = []
    assert name in Image.OPEN

    def accept(head: bytes) -> bool:
        asked.append(head)
        return False

    monkeypatch.setitem(Image.OPEN, name, (Image.OPEN[name][0], accept))
    with pytest.raises(Skip, match="no known image"):
        probe(io.BytesIO(b"no known image, and long enough for any reader"))
    assert not asked


@pytest.mark.parametrize(
    ("mode", "format", "expected"),
    [
        ("I;16", "PNG", "I;16"),
        ("I;16", "TIFF", "I;16"),
        ("I", "TIFF", "I"),
        ("F", "TIFF", "F"),
        ("L", "PNG", ""),
        ("1", "TIFF", ""),
        ("RGBA", "PNG", ""),
    ],
)
def test_modes_that_lose_bits_are_known_by_the_header(mode: str, format: str, expected: str) -> None:
    """As in transformers they become white or black: the report names them by mode."""
    file = io.BytesIO()
    Image.new(mode, (40, 30)).save(file, format)
    assert probe(io.BytesIO(file.getvalue())).mode == expected
    assert probe_part(InMemoryFile(file.getvalue(), ""), Part("0", 0, len(file.getvalue()))).mode == expected


EXTENSIONS = {"JPEG": "jpg", "PNG": "png", "WEBP": "webp", "GIF": "gif", "BMP": "bmp", "TIFF": "tif", "AVIF": "avif"}


@pytest.mark.parametrize(("format", "extension"), EXTENSIONS.items())
def test_the_extension_is_that_of_the_content(format: str, extension: str) -> None:
    found = probe(io.BytesIO(picture(format=format)))
    assert (found.kind, found.extension, found.width, found.height) == ("image", extension, 40, 30)


@pytest.mark.parametrize("format", EXTENSIONS)
@pytest.mark.parametrize("kept", [0.0, 0.1, 0.5, 0.9])
def test_a_cut_image_is_unreadable(format: str, kept: float) -> None:
    """Its header still tells a size, but training could not decode it."""
    data = picture(400, 300, format)
    with pytest.raises(Skip) as skip:
        probe(io.BytesIO(data[: int(len(data) * kept)]))
    assert skip.value.reason is Reason.UNREADABLE_MEDIA


@given(st.sampled_from([*EXTENSIONS]), st.integers(0, 199), st.binary(max_size=4))
@settings(deadline=None, max_examples=200)
def test_damaged_bytes_raise_nothing_but_a_skip(format: str, at: int, noise: bytes) -> None:
    data = bytearray(picture(format=format))
    data[at : at + len(noise)] = noise
    with contextlib.suppress(Skip):
        found = probe(io.BytesIO(data))
        assert found.kind == "video" or (found.width > 0 and found.height > 0)


def test_bytes_behind_an_image_do_no_harm() -> None:
    found = probe(io.BytesIO(picture() + b"\0" * 100))
    assert (found.width, found.height) == (40, 30)


@pytest.mark.parametrize("data", [b"root:x:0:0:root:/root:/bin/bash\n", b"", b"<!DOCTYPE html><p>secret", b"\0" * 40])
def test_bytes_of_a_file_that_is_no_medium_are_shown_nowhere(data: bytes) -> None:
    """A record may name any file of this machine, /etc/shadow too, and a ledger is shared."""
    with pytest.raises(Skip, match=r"unreadable_media: no known image or video(; it is an HTML page)?$"):
        probe(io.BytesIO(data))
    with pytest.raises(Skip, match=r"^unreadable_media: 'p.npy' is no .npy$"):
        load_patch_positions(data, "p.npy")
