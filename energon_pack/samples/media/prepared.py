"""Prepare media for a processor's call, in training and where lengths are verified."""

import json
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import numpy as np
from PIL import Image

from energon_pack.samples.input_rules import InputRules
from energon_pack.samples.media.arguments import PreparedMedia, VideoClip, media_arguments, video_metadata
from energon_pack.samples.media.kinds import AUDIO, IMAGE, KINDS, VIDEO
from energon_pack.samples.media.lazy_image import decode_if_lazy
from energon_pack.samples.media.medium import Media
from energon_pack.samples.tokens import BY_PACKAGE, CROP, RESIZE_BY_TORCH, MediumInput, PixelStep


def prepared_media(rules: InputRules, media: Sequence[MediumInput], data: Sequence[Any]) -> PreparedMedia:
    """Decode and resize the media of a sample for the call of its processor.

    `data`: Pillow's image for each image or listed frame of a video, and the bytes of each other medium's file.

    Raises:
        ValueError, OSError: a medium can't be decoded, or has another size than when it was packed.
    """
    ends = [*accumulate(len(medium.part_kinds) for medium in media)]
    each = zip(media, [0, *ends], ends, strict=False)
    return PreparedMedia(
        [medium.kind for medium in media], [_prepared(rules, m, data[start:end]) for m, start, end in each]
    )


def _prepared(rules: InputRules, medium: MediumInput, data: Sequence[Any]) -> Any:
    if medium.kind == IMAGE.kind:
        return _images_after_steps(rules, medium, data)[0]
    if medium.kind != VIDEO.kind:
        known = Media(medium.kind, medium.width, medium.height, num_samples=medium.num_samples, rate=rules.rate)
        return KINDS[medium.kind].decoded(data[0], known, rules.rate)
    from energon_pack.samples.media.streams import decode_frames  # late: images need no reader of videos

    of_list = [data[index] for index in medium.frames] if medium.num_images else None
    frames = _images_after_steps(rules, medium, of_list or decode_frames(data[0], medium.frames))
    sound = Media(AUDIO.kind, num_samples=medium.num_samples, rate=rules.rate)
    heard = AUDIO.decoded(data[0], sound, rules.rate) if medium.num_samples else None
    return make_clip(medium, frames, heard)


def make_clip(video: MediumInput, frames: Sequence[Image.Image], sound: Any = None) -> VideoClip:
    """Join the frames of a video for a processor's call: uint8 [n, height, width, 3], with the video's metadata.

    `sound`: float32 [n]; None: the video's sound is not used.
    """
    total = int(video.num_in_source) if video.num_in_source == int(video.num_in_source) else video.num_in_source
    pixels = np.stack([np.asarray(frame) for frame in frames])
    return VideoClip(pixels, video_metadata(total, video.fps, video.frames), sound)


def _images_after_steps(rules: InputRules, medium: MediumInput, images: Sequence[Any]) -> list[Image.Image]:
    shown = [decode_if_lazy(image, rules.looks[medium.kind]) for image in images]
    if other := next((image.size for image in shown if image.size != (medium.width, medium.height)), None):
        from energon_pack.samples.media.streams import UndecodableError

        expected = f"{medium.width}×{medium.height}"
        raise UndecodableError(
            f"its picture is {other[0]}×{other[1]}, and {expected} by its header when it was measured"
        )
    return apply_medium_steps(rules, medium, shown)


def apply_medium_steps(rules: InputRules, medium: MediumInput, images: Sequence[Image.Image]) -> list[Image.Image]:
    """Apply the steps of a medium (resize, crop …) to its images or frames."""
    return [apply_steps(image, medium.steps, partial(_preprocessed_by_package, rules)) for image in images]


def _preprocessed_by_package(rules: InputRules, image: Image.Image) -> Image.Image:
    """Return an image after the preprocessor of another package; raises PackError if it can't be imported."""
    changed_image: Image.Image = _preprocessor(json.dumps(rules.media)).apply(image)
    return changed_image


@lru_cache(maxsize=1)
def _preprocessor(media: str) -> Any:
    from energon_pack.run.load_by_name import load_entry_point, load_named  # late: only a package's class needs it

    settings = json.loads(media)
    name = settings["image"]
    make: Any = load_named("media.image", name) if ":" in name else load_entry_point("media", "media.image", name)
    return make(SimpleNamespace(**settings), settings["factor"])


def processor_arguments(rules: InputRules, media: PreparedMedia) -> dict[str, Any]:
    """Return the keyword arguments of a processor's call for these media, with the settings of `rules`."""
    return media_arguments(media, rules.call_settings, rules.nests_images)


def apply_steps(
    image: Image.Image, steps: Sequence[PixelStep], change: Callable[[Image.Image], Image.Image]
) -> Image.Image:
    """Apply steps (resize, crop …) to an image; `change`: a function for the step of another package's preprocessor."""
    for step in steps:
        size = step.width, step.height
        if step.operation == BY_PACKAGE:
            image = change(image)
        elif step.operation == CROP:
            x, top = (image.width - step.width) // 2, (image.height - step.height) // 2
            image = image.crop((x, top, x + step.width, top + step.height))
        elif step.operation == RESIZE_BY_TORCH:
            image = _resized_by_torch(image, size)
        else:
            image = image.resize(size, Image.Resampling.BICUBIC)
    return image


def _resized_by_torch(frame: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Resize a frame as qwen_vl_utils does: with torch, whose pixels differ from Pillow's."""
    from torch import from_numpy
    from torch.nn.functional import interpolate

    pixels = from_numpy(np.array(frame)).permute(2, 0, 1)[None].float()
    pixels = interpolate(pixels, size=size[::-1], mode="bicubic", align_corners=False, antialias=True)
    return Image.fromarray(pixels.clamp(0, 255).round()[0].byte().permute(1, 2, 0).numpy())
