"""Make images and clips of random pixels, to try processors and models with."""

from collections.abc import Iterator

import numpy as np
from PIL import Image

from energon_pack.samples.media.probe import Media
from energon_pack.templates.families.asking import metadata_of
from energon_pack.templates.processor_inputs import Clip
from energon_pack.templates.template import Template
from energon_pack.training.calls import Given

#: (width, height) of each member's images; they differ so that processors cut them into unequal numbers of tiles
_IMAGES = ([(96, 64)], [(300, 700)], [(1000, 600), (120, 80)])
_CLIPS = ((4, 96, 64), (8, 160, 240), (6, 64, 64))
_FPS = 2.0


def image(width: int, height: int, seed: int) -> Image.Image:
    """Return an image of random pixels."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


def clip(template: Template, num_frames: int, width: int, height: int, seed: int) -> Clip:
    """Return a clip of random pixels, prepared by the template, whose frames are all used."""
    pixels = np.random.default_rng(seed).integers(0, 256, (num_frames, height, width, 3), np.uint8)
    frames = template.prepare_frames([*map(Image.fromarray, pixels)])
    metadata = metadata_of(Media("video", width, height, "mp4", num_frames, _FPS))
    return np.stack([np.asarray(frame) for frame in frames]), metadata


def members(template: Template, kind: str) -> Iterator[Given]:
    """Yield members with media of one kind, in several sizes and numbers."""
    if kind == "image":
        for number, sizes in enumerate(_IMAGES):
            yield Given([template.prepare_image(image(*size, number)) for size in sizes], [], ["image"] * len(sizes))
    else:
        for number, clip_of in enumerate(_CLIPS):
            yield _with_clip(template, *clip_of, number)


def twins(template: Template, kind: str) -> Iterator[Given]:
    """Yield members with media of one kind and one size."""
    for number in (7, 8):
        if kind == "image":
            yield Given([template.prepare_image(image(*_IMAGES[0][0], number))], [], ["image"])
        else:
            yield _with_clip(template, *_CLIPS[0], number)


def _with_clip(template: Template, num_frames: int, width: int, height: int, seed: int) -> Given:
    """Return a member with one clip; with `media.num_frames` every clip has that many frames."""
    wanted = template.spec.media.num_frames or num_frames
    return Given([], [clip(template, wanted, width, height, seed)], ["video"])
