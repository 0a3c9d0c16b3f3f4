"""Prepare media for a processor's call, in training and where lengths are verified."""

import json
from collections.abc import Sequence
from functools import lru_cache, partial
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import numpy as np
from PIL.Image import Image

from energon_pack.run.by_name import entry_point, load_named
from energon_pack.samples.input_rules import InputRules
from energon_pack.samples.media.arguments import Clip, Prepared, media_arguments, metadata
from energon_pack.samples.media.kinds import AUDIO, IMAGE, KINDS, VIDEO
from energon_pack.samples.media.lazy_image import with_look
from energon_pack.samples.media.medium import Media
from energon_pack.samples.media.steps import stepped
from energon_pack.samples.media.streams import UndecodableError
from energon_pack.samples.media.video import decode_frames
from energon_pack.samples.tokens import SeenMedium


def prepared_media(rules: InputRules, media: Sequence[SeenMedium], own: Sequence[Any]) -> Prepared:
    """Return the media of a sample for its processor.

    Args:
        media: the media of the sample, in the order of their placeholders.
        own: for each medium an image, or the bytes of another medium; for a list of frames, each image.

    Raises:
        ValueError, OSError: a medium can't be decoded, or is not what it was when it was packed.
    """
    ends = [*accumulate(len(medium.part_kinds) for medium in media)]
    each = zip(media, [0, *ends], ends, strict=False)
    return Prepared([medium.kind for medium in media], [_prepared(rules, m, own[start:end]) for m, start, end in each])


def _prepared(rules: InputRules, medium: SeenMedium, own: Sequence[Any]) -> Any:
    if medium.kind == IMAGE.kind:
        return _pixels(rules, medium, own)[0]
    if medium.kind != VIDEO.kind:
        known = Media(medium.kind, medium.width, medium.height, num_samples=medium.num_samples, rate=rules.rate)
        return KINDS[medium.kind].decoded(own[0], known, rules.rate)
    of_list = [own[index] for index in medium.frames] if medium.num_images else None
    frames = _pixels(rules, medium, of_list or decode_frames(own[0], medium.frames))
    sound = Media(AUDIO.kind, num_samples=medium.num_samples, rate=rules.rate)
    heard = AUDIO.decoded(own[0], sound, rules.rate) if medium.num_samples else None
    return clip(medium, frames, heard)


def clip(video: SeenMedium, frames: Sequence[Image], sound: Any = None) -> Clip:
    """Return the frames of a video for a processor's call, with the video's metadata."""
    total = int(video.num_in_source) if video.num_in_source == int(video.num_in_source) else video.num_in_source
    pixels = np.stack([np.asarray(frame) for frame in frames])
    return Clip(pixels, metadata(total, video.fps, video.frames), sound)


def _pixels(rules: InputRules, medium: SeenMedium, images: Sequence[Any]) -> list[Image]:
    shown = [with_look(image, rules.looks[medium.kind]) for image in images]
    if other := next((image.size for image in shown if image.size != (medium.width, medium.height)), None):
        wanted = f"{medium.width}×{medium.height}"
        raise UndecodableError(f"its picture is {other[0]}×{other[1]}, and {wanted} by its header when it was measured")
    return changed(rules, medium, shown)


def changed(rules: InputRules, medium: SeenMedium, images: Sequence[Image]) -> list[Image]:
    """Return images, or frames, after the medium's steps."""
    return [stepped(image, medium.steps, partial(_changed_by_another, rules)) for image in images]


def _changed_by_another(rules: InputRules, image: Image) -> Image:
    """Return an image after the preprocessor of another package; raises PackError if it can't be imported."""
    made: Image = _preprocessor(json.dumps(rules.media)).apply(image)
    return made


@lru_cache(maxsize=1)
def _preprocessor(media: str) -> Any:
    settings = json.loads(media)
    name = settings["image"]
    make: Any = load_named("media.image", name) if ":" in name else entry_point("media", "media.image", name)
    return make(SimpleNamespace(**settings), settings["factor"])


def media_inputs(rules: InputRules, media: Prepared) -> dict[str, Any]:
    """Return the media arguments of a processor's call, and its settings for them; the frames are already chosen."""
    return media_arguments(media, rules.call_settings, rules.nests_images)
