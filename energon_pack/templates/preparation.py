"""Prepares media before a model's processor sees them, by the run's `media.*` and by the settings of a record.

    Media ──choose_frames──► indices ──prepared──► the size that the processor is told of
    pixels ──prepare_image, prepare_frames──► pixels of that size

What a record says of a medium goes before `media.*`, by qwen_vl_utils' rules; then comes the processor's own rule.
"""

from collections.abc import Sequence
from dataclasses import replace

from PIL import Image

from energon_pack.samples.media.asked import span_of
from energon_pack.samples.media.audio import resampled_length
from energon_pack.samples.media.probe import Media
from energon_pack.samples.media.settings import MediumSettings
from energon_pack.samples.skip import Reason, Skip
from energon_pack.templates.families.rules import MediaRules
from energon_pack.templates.preprocess import (
    first_to_last,
    image_preprocessor,
    utils_frame_size,
    utils_image_size,
    utils_num_frames,
    video_preprocessor,
)
from energon_pack.templates.settings import MediaConfig


class Preparation:
    """Prepares media for one model."""

    def __init__(self, family: str, media: MediaConfig, rules: MediaRules):
        """Take what the run says of all media; raises PackError as the preprocessors."""
        self.rules = rules
        self._family, self._run = family, media
        self._factor = int(rules.settings.get("factor") or 1)
        self._image = image_preprocessor(media, self._factor)
        self._video = video_preprocessor(media, self._factor)

    def choose_frames(self, video: Media) -> list[int]:
        """Which frames of a video the model sees; measuring and decoding both ask here.

        Raises:
            Skip: `unreadable_media` for a video that has too few.
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
        """What a record says of the frames of a video; what it does not say, the run does."""
        run = self._run
        return replace(
            settings,
            fps=settings.fps or run.fps or self.rules.frames.settings["fps"],
            min_frames=settings.min_frames or run.min_frames,
            max_frames=settings.max_frames or run.max_frames,
        )

    @property
    def prepares_frames(self) -> bool:
        """Whether `media.video` chooses frames in place of the processor."""
        return self._video is not None

    def prepare_image(self, image: Image.Image, settings: MediumSettings | None = None) -> Image.Image:
        """What is done to an image before the processor sees it: by `media.image`, or as its sample says of it."""
        if settings is not None and settings.pixels:
            return _resized(image, utils_image_size(settings, *image.size, self._factor_for(settings)))
        return image if self._image is None else self._image.apply(image)

    def prepare_frames(
        self, frames: Sequence[Image.Image], settings: MediumSettings | None = None
    ) -> list[Image.Image]:
        """What is done to the chosen frames before the processor sees them: by `media.video`, or as the sample says."""
        if not frames:
            return []
        width, height = self._frame_size(*frames[0].size, len(frames), settings)
        return [_resized(frame, (width, height)) for frame in frames]

    def _frame_size(self, width: int, height: int, num_frames: int, settings: MediumSettings | None) -> tuple[int, int]:
        if settings is not None and settings.pixels:
            return utils_frame_size(settings, width, height, num_frames, self._factor_for(settings))
        return (width, height) if self._video is None else self._video.size(width, height, num_frames)

    def _factor_for(self, settings: MediumSettings) -> int:
        """Pixels of a side of a token, in models whose rule qwen_vl_utils' settings are about."""
        if self._factor < 2:
            raise Skip(
                Reason.UNSUPPORTED_MEDIA,
                f"{settings.pixels[0]} of a medium is for models whose tokens are squares of pixels, as Qwen-VL's, not"
                f" model.template={self._family}: take it out (media=resize_max_pixels is for all images)",
            )
        return self._factor

    def prepared(self, media: Media, num_frames: int) -> Media:
        """A medium with the size that its sample, `media.*` or resampling gives it before the processor sees it."""
        if media.kind == "audio":
            return self._as_heard(media)
        settings, size = media.settings, (media.width, media.height)
        if media.kind == "video":
            size = self._frame_size(*size, num_frames, settings)
        elif settings is not None and settings.pixels:
            size = utils_image_size(settings, *size, self._factor_for(settings))
        elif self._image is not None:
            size = self._image.size(*size)
        if settings is None and size == (media.width, media.height):
            return media
        return replace(media, width=size[0], height=size[1], settings=settings if media.kind == "video" else None)

    def _as_heard(self, sound: Media) -> Media:
        """A sound after `decode_audio` brought it to the rate of the processor."""
        rate = self.rules.rate or sound.rate
        num_samples = resampled_length(sound.num_samples, sound.rate, rate)
        return Media("audio", num_samples=num_samples, rate=rate)


def _resized(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    return image if image.size == size else image.resize(size, Image.Resampling.BICUBIC)
