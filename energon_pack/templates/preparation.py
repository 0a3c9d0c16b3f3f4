"""Prepare media before a model's processor sees them, by the run's `media.*` and by the settings of a record.

    Media ──choose_frames──► indices ──prepared──► the size that the processor gets
    pixels ──prepare_image, prepare_frames──► pixels of that size

A record's settings for a medium override `media.*`, by qwen_vl_utils' rules; then comes the processor's own rule.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from PIL import Image

from energon_pack.samples.media.asked import span_of
from energon_pack.samples.media.image import Look
from energon_pack.samples.media.kinds import AUDIO, IMAGE, KINDS, VIDEO
from energon_pack.samples.media.lazy_image import with_look
from energon_pack.samples.media.medium import Media
from energon_pack.samples.media.settings import MediumSettings
from energon_pack.samples.skip import Reason, Skip
from energon_pack.templates.families.rules import MediaRules
from energon_pack.templates.preprocess import (
    QwenVLUtilsVideo,
    first_to_last,
    image_preprocessor,
    utils_frame_size,
    utils_image_size,
    utils_num_frames,
    video_preprocessor,
)
from energon_pack.templates.settings import Alpha, MediaConfig


class Preparation:
    """Prepares media for one model."""

    def __init__(self, family: str, media: MediaConfig, rules: MediaRules):
        """Read the run's settings for all media; raises PackError like the preprocessors."""
        self.rules = rules
        self._family, self._run = family, media
        self._factor = int(rules.settings.get("factor") or 1)
        self._image = image_preprocessor(media, self._factor)
        self._video = video_preprocessor(media, self._factor)
        self._looks = {IMAGE.kind: _look_of(media.image, media), VIDEO.kind: _look_of(media.video, media)}

    def choose_frames(self, video: Media) -> list[int]:
        """Choose the frames of a video that the model sees; measuring and decoding both call this.

        Raises:
            Skip: `unreadable_media` for a video with too few frames.
        """
        if video.frames:
            return list(video.frames)
        if video.settings is None:
            return self._video.choose_frames(video) if self._video is not None else self.rules.frames.choose(video)
        first, total = span_of(video)
        if video.settings.counts_frames:
            wanted = utils_num_frames(self._with_the_runs(video.settings), total, video.fps)
            return [first + index for index in first_to_last(total, wanted)]
        return [first + index for index in self.choose_frames(replace(video, num_frames=total, settings=None))]

    def _with_the_runs(self, settings: MediumSettings) -> MediumSettings:
        """Return a record's settings for the frames of a video, completed by the run's."""
        run = self._run
        return replace(
            settings,
            fps=settings.fps or run.fps or self.rules.frames.settings["fps"],
            min_frames=settings.min_frames or run.min_frames,
            max_frames=settings.max_frames or run.max_frames,
        )

    @property
    def prepares_frames(self) -> bool:
        """Whether `media.video` chooses frames instead of the processor."""
        return self._video is not None

    def prepare_image(self, image: Image.Image, settings: MediumSettings | None = None) -> Image.Image:
        """Decode and prepare an image for the processor: by `media.image`, or by its sample's settings."""
        image = with_look(image, self._looks[IMAGE.kind])
        if settings is not None and settings.pixels:
            return _resized(image, utils_image_size(settings, *image.size, self._factor_for(settings)))
        return image if self._image is None else self._image.apply(image)

    def prepare_frames(
        self, frames: Sequence[Image.Image], settings: MediumSettings | None = None
    ) -> list[Image.Image]:
        """Prepare the chosen frames for the processor: by `media.video`, or by the sample's settings."""
        frames = [with_look(frame, self._looks[VIDEO.kind]) for frame in frames]
        if not frames:
            return []
        *before, size = self._frame_sizes(*frames[0].size, len(frames), settings)
        for first in before:
            frames = [_resized(frame, first) for frame in frames]
        return [_resized_frame(frame, size) for frame in frames]

    def _frame_sizes(
        self, width: int, height: int, num_frames: int, settings: MediumSettings | None
    ) -> list[tuple[int, int]]:
        """Return the sizes that frames get, one after the other; qwen_vl_utils resizes those of a list twice."""
        own = settings if settings is not None and settings.pixels else None
        if own is None and not isinstance(self._video, QwenVLUtilsVideo):
            return [(width, height) if self._video is None else self._video.size(width, height, num_frames)]
        factor = self._factor if own is None else self._factor_for(own)
        own, sizes = own or MediumSettings(), []
        if settings is not None and settings.sample_fps is not None:  # a list of frames
            width, height = utils_image_size(own, width, height, 2 * factor)
            sizes, num_frames = [(width, height)], num_frames + num_frames % 2
        return [*sizes, utils_frame_size(own, width, height, num_frames, factor)]

    def _factor_for(self, settings: MediumSettings) -> int:
        """Return the pixels of a token's side, for models whose rule takes qwen_vl_utils' settings."""
        if self._factor < 2:
            raise Skip(
                Reason.UNSUPPORTED_MEDIA,
                f"{settings.pixels[0]} of a medium is for models whose tokens are squares of pixels, as Qwen-VL's, not"
                f" model.template={self._family}: take it out (media=resize_max_pixels is for all images)",
            )
        return self._factor

    def prepared(self, media: Media, num_frames: int) -> Media:
        """Return a medium with the size that it has after its sample's settings, `media.*` or resampling."""
        if media.kind not in (IMAGE.kind, VIDEO.kind):
            return KINDS[media.kind].prepared(media, self.rules.rate)
        settings, size = media.settings, (media.width, media.height)
        if media.is_turned and not self._looks[media.kind].is_upright:
            size = size[::-1]
        if media.kind == VIDEO.kind:
            size = self._frame_sizes(*size, num_frames, settings)[-1]
        elif settings is not None and settings.pixels:
            size = utils_image_size(settings, *size, self._factor_for(settings))
        elif self._image is not None:
            size = self._image.size(*size)
        if media.is_heard:
            sound = AUDIO.prepared(media, self.rules.rate)
            media = replace(media, num_samples=sound.num_samples, rate=sound.rate)
        if settings is None and size == (media.width, media.height):
            return media
        settings = settings if media.kind == VIDEO.kind else None
        return replace(media, width=size[0], height=size[1], is_turned=False, settings=settings)


def _look_of(name: str, media: MediaConfig) -> Look:
    """Return how images are decoded for `media.image`, or frames that are images for `media.video`.

    qwen_vl_utils (its `to_rgb`) puts RGBA on white, no other mode, and knows no EXIF orientation.
    """
    background = "" if media.alpha is Alpha.auto else media.alpha.value
    if name != "qwen_vl_utils":
        return Look(background)
    return Look(background or "white", "" if background else "RGBA", is_upright=False)


def _resized_frame(frame: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Resize a frame as qwen_vl_utils does: with torch, whose pixels differ from Pillow's."""
    if frame.size == size:
        return frame
    from torch import from_numpy
    from torch.nn.functional import interpolate

    pixels = from_numpy(np.array(frame)).permute(2, 0, 1)[None].float()
    pixels = interpolate(pixels, size=size[::-1], mode="bicubic", align_corners=False, antialias=True)
    return Image.fromarray(pixels.clamp(0, 255).round()[0].byte().permute(1, 2, 0).numpy())


def _resized(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    return image if image.size == size else image.resize(size, Image.Resampling.BICUBIC)
