"""Make images and clips of random pixels, and sounds of random samples, to try processors and models."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from PIL import Image

from energon_pack.samples.media.audio import Samples
from energon_pack.samples.media.probe import Media
from energon_pack.templates.families.asking import metadata_of
from energon_pack.templates.processor_inputs import Clip
from energon_pack.templates.template import Template
from energon_pack.training.calls import Given, merged

#: (width, height) of each member's images; they differ so that processors cut them into unequal numbers of tiles
_IMAGES = ([(96, 64)], [(300, 700)], [(1000, 600), (120, 80)])
_CLIPS = ((4, 96, 64), (8, 160, 240), (6, 64, 64))
_FPS = 2.0
#: seconds of each member's sounds
_SOUNDS = ([0.7], [2.3], [1.1, 0.4])


def image(width: int, height: int, seed: int) -> Image.Image:
    """Return an image of random pixels."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


def clip(template: Template, num_frames: int, width: int, height: int, seed: int) -> Clip:
    """Return a clip of random pixels, prepared by the template; all of its frames are used."""
    pixels = np.random.default_rng(seed).integers(0, 256, (num_frames, height, width, 3), np.uint8)
    frames = template.prepare_frames([*map(Image.fromarray, pixels)])
    metadata = metadata_of(Media("video", width, height, "mp4", num_frames, _FPS))
    return Clip(np.stack([np.asarray(frame) for frame in frames]), metadata)


def sound(template: Template, seconds: float, seed: int) -> Samples:
    """Return a sound of random samples at the rate of the processor."""
    num_samples = round(seconds * template.rules.rate)
    return np.random.default_rng(seed).uniform(-0.5, 0.5, num_samples).astype(np.float32)


def members(template: Template, kind: str) -> Iterator[Given]:
    """Yield members with media of one kind, in several sizes and numbers."""
    if kind == "image":
        for number, sizes in enumerate(_IMAGES):
            yield Given([template.prepare_image(image(*size, number)) for size in sizes], [], ["image"] * len(sizes))
    elif kind == "audio":
        for number, lengths in enumerate(_SOUNDS):
            yield _with_sounds(template, lengths, number)
    else:
        for number, clip_of in enumerate(_CLIPS):
            yield _with_clip(template, *clip_of, number)


def twins(template: Template, kind: str) -> Iterator[Given]:
    """Yield members with media of one kind and one size."""
    for number in (7, 8):
        if kind == "image":
            yield Given([template.prepare_image(image(*_IMAGES[0][0], number))], [], ["image"])
        elif kind == "audio":
            yield _with_sounds(template, _SOUNDS[0], number)
        else:
            yield _with_clip(template, *_CLIPS[0], number)


def heard(template: Template) -> Iterator[Given]:
    """Yield members with clips that are heard: a clip alone, and a clip behind a sound."""
    for number, (member, seconds) in enumerate(zip(members(template, "video"), (1.3, 2.9), strict=False)):
        clips = [clip._replace(sound=sound(template, seconds, number)) for clip in member.clips]
        before = merged([_with_sounds(template, [0.6], number), member]) if number else member
        yield replace(before, clips=clips)


def _with_sounds(template: Template, lengths: Sequence[float], seed: int) -> Given:
    return Given((), (), ["audio"] * len(lengths), [sound(template, seconds, seed) for seconds in lengths])


def _with_clip(template: Template, num_frames: int, width: int, height: int, seed: int) -> Given:
    """Return a member with one clip; with `media.num_frames` every clip has that many frames."""
    wanted = template.spec.media.num_frames or num_frames
    return Given([], [clip(template, wanted, width, height, seed)], ["video"])
