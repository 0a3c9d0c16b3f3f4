"""Pixels, films and sounds are those that other packages read: qwen-vl-utils, decord and soundfile.

Without it `media=qwen_vl_utils` had only the sizes of that package: another background, and other upright pictures.
"""

import hashlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from energon_pack.samples.conversation import options_of
from energon_pack.samples.media.lazy_image import LazyImage
from energon_pack.samples.media.read_media import media_seen_by_model, probe, with_requested_settings
from energon_pack.samples.media.streams import decode_frames
from energon_pack.templates.families.qwen_vl import QwenVL
from energon_pack.templates.families.rules import ProcessorSettings
from energon_pack.templates.preparation import MediaPreparation
from energon_pack.templates.settings import MediaConfig
from support.films import COVER, Pictures, film, with_cover_first
from support.labels.in_environments import run
from support.samples import sound

pytestmark = pytest.mark.slow

PATCHES = {"patch_size": 14, "merge_size": 2, "size": {"shortest_edge": 3136, "longest_edge": 1_000_000}}
PREPARE = MediaPreparation(
    "qwen_vl",
    MediaConfig(image="qwen_vl_utils", video="qwen_vl_utils"),
    QwenVL(ProcessorSettings(image=PATCHES, video=PATCHES)),
)
SETTINGS: tuple[dict[str, int], ...] = (
    {},
    {"max_pixels": 30_000, "min_pixels": 4000},
    {"resized_height": 100, "resized_width": 70},
)
MODES = {
    "PNG": ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"),
    "JPEG": ("L", "RGB", "CMYK"),
    "WEBP": ("RGB", "RGBA"),
    "TIFF": ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "I", "I;16", "F"),
    "GIF": ("L", "P"),
    "BMP": ("RGB", "RGBA"),
    "AVIF": ("RGB", "RGBA"),
    "TGA": ("RGBA",),
}
SIZES = ((1, 1), (5, 3), (27, 28), (1, 150), (150, 1), (640, 480), (13, 700), (2500, 1700))


def drawn(mode: str, width: int = 90, height: int = 60) -> Image.Image:
    rng = np.random.default_rng(width)
    if mode in ("I;16", "I", "F"):
        kind = {"I;16": np.uint16, "I": np.int32, "F": np.float32}[mode]
        return Image.fromarray(rng.integers(0, 65_536, (height, width)).astype(kind))
    pixels = rng.integers(0, 256, (height, width, 4), np.uint8)
    image = Image.fromarray(pixels)
    return image if mode == "RGBA" else image.convert("RGB").convert("L" if mode == "LA" else mode).convert(mode)


def saved(image: Image.Image, format: str, **how: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **how)
    return file.getvalue()


def images() -> Iterator[bytes]:
    """83 of all modes, formats, orientations and shapes."""
    for format, modes in MODES.items():
        for mode in modes:
            yield saved(drawn(mode), format)
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        for format in ("JPEG", "PNG", "WEBP", "TIFF"):
            yield saved(drawn("RGB"), format, exif=exif)
        yield saved(drawn("RGBA"), "PNG", exif=exif)
    yield from (saved(drawn("RGB", *size), "PNG") for size in SIZES)
    yield from (saved(drawn("P"), format, transparency=3) for format in ("PNG", "GIF"))
    moving = [drawn("RGBA", 90, 60).rotate(180)]
    yield from (saved(drawn("RGBA"), format, save_all=True, append_images=moving) for format in ("PNG", "WEBP"))


def hashed(pixels: np.ndarray) -> list[Any]:
    return [list(pixels.shape), hashlib.sha256(np.ascontiguousarray(pixels).tobytes()).hexdigest()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


def compare(asked: list[dict[str, Any]], ours: list[Any], folder: Path, tmp_path: Path) -> None:
    theirs = run("witnesses", asked, folder, tmp_path, script_name="run_witnesses.py")
    assert len(theirs) == len(asked) == len(ours)
    assert [(own, a, b) for own, a, b in zip(asked, json.loads(json.dumps(ours)), theirs, strict=True) if a != b] == []


def test_images_are_qwen_vl_utils_own(folder: Path, tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []
    ours: list[Any] = []
    for number, data in enumerate(images()):
        (folder / f"{number}.image").write_bytes(data)
        for settings in SETTINGS:
            medium = with_requested_settings(
                [probe(io.BytesIO(data))], None, options_of({"media_settings": [settings or None]})
            )[0]
            image = PREPARE.prepare_image(LazyImage(data, ""), medium.settings)
            size = PREPARE.prepared(medium, 0)
            assert image.size == (size.width, size.height)
            asked.append({"names": [f"{number}.image"], "settings": settings})
            ours.append(hashed(np.asarray(image)))
    assert len(asked) >= 3 * 80
    compare(asked, ours, folder, tmp_path)


def test_lists_of_frames_are_qwen_vl_utils_own(folder: Path, tmp_path: Path) -> None:
    """That package resizes each frame as an image of tokens twice as wide, and then the video."""
    asked: list[dict[str, Any]] = []
    ours: list[Any] = []
    rng = np.random.default_rng(7)
    for number in range(24):
        exif = Image.Exif()
        exif[0x0112] = int(rng.integers(1, 9))
        size, num = rng.integers(5, 300, 2).tolist(), int(rng.integers(2, 7))
        frames = [saved(drawn("RGBA" if number % 3 else "RGB", *size), "PNG", exif=exif) for _ in range(num)]
        names = [f"{number}.{i}.frame" for i in range(num)]
        for name, data in zip(names, frames, strict=True):
            (folder / name).write_bytes(data)
        settings = [*SETTINGS, {"sample_fps": 1}, {"total_pixels": 300_000, "min_pixels": 4000}][number % 5]
        said = [{**settings, "list_of_frames": num}, *[None] * (num - 1)]
        media = with_requested_settings(
            [probe(io.BytesIO(data)) for data in frames], None, options_of({"media_settings": said})
        )
        ((video, _),) = media_seen_by_model(media)
        shown = PREPARE.prepare_frames([LazyImage(data, "") for data in frames], video.settings)
        prepared = PREPARE.prepared(video, num)
        assert shown[0].size == (prepared.width, prepared.height)
        asked.append({"names": names, "settings": settings})
        ours.append(hashed(np.stack([np.asarray(frame) for frame in [*shown, *shown[-1:] * (num % 2)]])))
    compare(asked, ours, folder, tmp_path)


def films() -> Iterator[bytes]:
    """Turned and covered films of which decord, with the FFmpeg of 2018, knows the turn and the cover."""
    for format in ("mp4", "mov", "3gp"):
        yield from (film(format=format, turn=(turn, False, False)) for turn in (0, 90, 180, 270))
    yield from (film(format=format) for format in ("matroska", "avi", "mpegts"))
    yield from (film(Pictures("mjpeg"), format=format) for format in ("mp4", "matroska", "avi"))
    covered = film(Pictures(), COVER._replace(disposition="attached_pic"))
    yield from (covered, with_cover_first(covered))
    yield film(Pictures(disposition="none"), Pictures(disposition="default"))


def test_films_are_decords_own(folder: Path, tmp_path: Path) -> None:
    names = []
    for number, data in enumerate(films()):
        (folder / f"{number}.film").write_bytes(data)
        names.append(f"{number}.film")
    asked = [{"names": [name], "settings": {}} for name in names]
    theirs = run("witnesses", asked, folder, tmp_path, script_name="run_witnesses.py")
    for name, (shape, corners) in zip(names, theirs, strict=True):
        data = (folder / name).read_bytes()
        medium = probe(io.BytesIO(data))
        frame = np.asarray(decode_frames(data, [3])[0]).astype(int)
        assert [medium.num_frames, medium.height, medium.width] == [medium.num_frames, *frame.shape[:2]] == shape, name
        ours = np.array([frame[y, x] for y in (5, -6) for x in (5, -6)])
        assert np.abs(ours - np.array(corners)).max() < 8, name


def test_sounds_from_pipes_are_soundfiles_own(folder: Path, tmp_path: Path) -> None:
    wav = sound(800)
    sizes = (1600, 0xFFFFFFFF, 0x7FFFFFFF, 0x7FFFF000, 0x80000000, 99_999_999)
    for size in sizes:
        (folder / f"{size}.wav").write_bytes(wav[:40] + size.to_bytes(4, "little") + wav[44:])
    asked = [{"names": [f"{size}.wav"], "settings": {}} for size in sizes]
    ours = [[probe(io.BytesIO((folder / f"{size}.wav").read_bytes())).num_samples, None] for size in sizes]
    compare(asked, ours, folder, tmp_path)
