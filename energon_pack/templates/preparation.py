"""Prepare media before a model's processor sees them, by the run's `media.*` and by the settings of a record.

    Media ──choose_frames──► indices ──prepared──► the size that the processor gets
    pixels ──prepare_image, prepare_frames──► pixels of that size

A record's settings for a medium override `media.*`, by qwen_vl_utils' rules; then comes the processor's own rule.
"""

from collections.abc import Sequence
from dataclasses import replace

from PIL import Image

from energon_pack.samples.media.asked import span_of
from energon_pack.samples.media.kinds import AUDIO, IMAGE, KINDS, VIDEO
from energon_pack.samples.media.medium import Media
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
        """Read the run's settings for all media; raises PackError like the preprocessors."""
        self.rules = rules
        self._family, self._run = family, media
        self._factor = int(rules.settings.get("factor") or 1)
        self._image = image_preprocessor(media, self._factor)
        self._video = video_preprocessor(media, self._factor)

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
        """Prepare an image for the processor: by `media.image`, or by its sample's settings."""
        if settings is not None and settings.pixels:
            return _resized(image, utils_image_size(settings, *image.size, self._factor_for(settings)))
        return image if self._image is None else self._image.apply(image)

    def prepare_frames(
        self, frames: Sequence[Image.Image], settings: MediumSettings | None = None
    ) -> list[Image.Image]:
        """Prepare the chosen frames for the processor: by `media.video`, or by the sample's settings."""
        if not frames:
            return []
        width, height = self._frame_size(*frames[0].size, len(frames), settings)
        return [_resized(frame, (width, height)) for frame in frames]

    def _frame_size(self, width: int, height: int, num_frames: int, settings: MediumSettings | None) -> tuple[int, int]:
        if settings is not None and settings.pixels:
            return utils_frame_size(settings, width, height, num_frames, self._factor_for(settings))
        return (width, height) if self._video is None else self._video.size(width, height, num_frames)

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
        if media.kind == VIDEO.kind:
            size = self._frame_size(*size, num_frames, settings)
        elif settings is not None and settings.pixels:
            size = utils_image_size(settings, *size, self._factor_for(settings))
        elif self._image is not None:
            size = self._image.size(*size)
        if media.is_heard:
            sound = AUDIO.prepared(media, self.rules.rate)
            media = replace(media, num_samples=sound.num_samples, rate=sound.rate)
        if settings is None and size == (media.width, media.height):
            return media
        return replace(media, width=size[0], height=size[1], settings=settings if media.kind == VIDEO.kind else None)


def _resized(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    return image if image.size == size else image.resize(size, Image.Resampling.BICUBIC)
