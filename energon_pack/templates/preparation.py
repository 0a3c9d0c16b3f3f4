"""Prepare media before a model's processor sees them, by the run's `media.*` and by the settings of a record.

    Media ──choose_frames──► indices ──prepared──► the size that the processor gets
    Media ──seen──► MediumInput, with the steps to that size ──apply_steps──► pixels

A record's settings for a medium override `media.*`, by qwen_vl_utils' rules; then comes the processor's own rule.
"""

from collections.abc import Sequence
from dataclasses import replace

from PIL import Image

from energon_pack.samples.media.image import RgbConversion
from energon_pack.samples.media.kinds import AUDIO, IMAGE, KINDS, VIDEO
from energon_pack.samples.media.lazy_image import decode_if_lazy
from energon_pack.samples.media.medium import Media, MediumSettings
from energon_pack.samples.media.prepared import apply_steps
from energon_pack.samples.media.read_media import first_and_num_frames, media_seen_by_model, num_frames_to_choose_from
from energon_pack.samples.member import BY_PACKAGE, RESIZE, RESIZE_BY_TORCH, MediumInput, PixelStep
from energon_pack.samples.skip import Reason, Skip
from energon_pack.templates.families.rules import MediaRules
from energon_pack.templates.preprocess import (
    QwenVLUtilsVideo,
    image_preprocessor,
    linspace_indices,
    qwen_utils_frame_size,
    qwen_utils_image_size,
    qwen_utils_num_frames,
    video_preprocessor,
)
from energon_pack.templates.settings import MediaConfig, TransparentPixelColour


class MediaPreparation:
    """Prepares media for one model's processor: chooses frames, and changes sizes and pixels."""

    def __init__(self, family: str, media: MediaConfig, rules: MediaRules):
        """Read the run's `media.*` settings; raises PackError if the preprocessors that they name can't be used."""
        self.rules = rules
        self._family, self._media_settings = family, media
        self.factor = int(rules.settings.get("factor") or 1)
        self._image_rule = image_preprocessor(media, self.factor)
        self._video_rule = video_preprocessor(media, self.factor)
        self.looks = {IMAGE.kind: _look_of(media.image, media), VIDEO.kind: _look_of(media.video, media)}

    def choose_frames(self, video: Media) -> list[int]:
        """Return the indices of the frames of a video that the model sees; measuring and decoding both use them."""
        if video.frames:
            return list(video.frames)
        if video.settings is None:
            rule = self._video_rule
            return self.rules.frames.choose(video) if rule is None else rule.choose_frames(video)
        first, total = first_and_num_frames(video)
        if video.settings.sets_num_frames:
            number = qwen_utils_num_frames(self._settings_with_run_defaults(video.settings), total, video.fps)
            return [first + index for index in linspace_indices(total, number)]
        return [first + index for index in self.choose_frames(replace(video, num_frames=total, settings=None))]

    def clip_frames(self, media: Sequence[Media]) -> int:
        """Return how many frames each clip of a sample has, if clips of one batch need equally many; else 0.

        Raises Skip if the sample's own clips have several lengths.
        """
        videos = [medium for medium in media if medium.kind == VIDEO.kind]
        if not videos or not self.rules.needs_equal_frame_counts():
            return 0
        numbers = {len(self.choose_frames(video)) for video in videos}
        if len(numbers) > 1:
            lengths = " and ".join(f"{number:,}" for number in sorted(numbers))
            raise Skip(
                Reason.UNSUPPORTED_MEDIA, f"clips of {lengths} frames in one sample: the model needs equally many"
            )
        return numbers.pop()

    def _settings_with_run_defaults(self, settings: MediumSettings) -> MediumSettings:
        """Return a video's own settings for the choice of frames, with the run's where it has none."""
        run = self._media_settings
        return replace(
            settings,
            fps=settings.fps or run.fps or self.rules.frames.settings["fps"],
            min_frames=settings.min_frames or run.min_frames,
            max_frames=settings.max_frames or run.max_frames,
        )

    @property
    def prepares_frames(self) -> bool:
        """Whether the preprocessor of `media.video` chooses frames in place of the processor."""
        return self._video_rule is not None

    def prepare_image(self, image: Image.Image, settings: MediumSettings | None = None) -> Image.Image:
        """Decode an image and change it by its own settings, or by `media.image`, for the processor."""
        return self._prepared_pixels([image], IMAGE.kind, settings)[0]

    def prepare_frames(
        self, frames: Sequence[Image.Image], settings: MediumSettings | None = None
    ) -> list[Image.Image]:
        """Change the chosen frames of a video by its own settings, or by `media.video`, for the processor."""
        return self._prepared_pixels(frames, VIDEO.kind, settings) if frames else []

    def _prepared_pixels(
        self, images: Sequence[Image.Image], kind: str, settings: MediumSettings | None
    ) -> list[Image.Image]:
        shown = [decode_if_lazy(image, self.looks[kind]) for image in images]
        _, steps = self._own_size_and_steps(Media(kind, *shown[0].size, settings=settings), len(shown))
        return [
            apply_steps(image, steps, getattr(self._image_rule, "apply", _refuse_changed_pixels)) for image in shown
        ]

    def seen(self, media: Sequence[Media], features: Sequence[int] = ()) -> list[MediumInput]:
        """Return a sample's media as the model sees them, with sizes and frames; a list of frames is one video.

        Args:
            features: for each returned medium, how many tokens hold its features; empty: 0 for all.
        """
        lists = [*media_seen_by_model(media)]
        each = zip(lists, features or [0] * len(lists), strict=True)
        return [self._seen_medium(medium, places.stop - places.start, number) for (medium, places), number in each]

    def _seen_medium(self, medium: Media, num_parts: int, num_features: int) -> MediumInput:
        frames = self.choose_frames(medium) if medium.kind == VIDEO.kind else []
        if medium.kind not in (IMAGE.kind, VIDEO.kind):
            prepared = self.prepared(medium, len(frames))
            width, height, num_samples = prepared.width, prepared.height, prepared.num_samples
            return MediumInput(medium.kind, 0, num_features, width, height, num_samples=num_samples)
        (width, height), steps = self._own_size_and_steps(medium, len(frames))
        return MediumInput(
            medium.kind,
            num_parts if medium.is_list else 0,
            num_features,
            width,
            height,
            steps,
            frames,
            num_frames_to_choose_from(medium) if frames else 0.0,
            medium.fps,
            AUDIO.prepared(medium, self.rules.rate).num_samples if medium.is_heard else medium.num_samples,
        )

    def _own_size_and_steps(self, medium: Media, num_frames: int) -> tuple[tuple[int, int], list[PixelStep]]:
        """Return a picture's own (width, height), and the resizing and cropping before it goes to the processor."""
        settings, size = medium.settings, (medium.width, medium.height)
        if medium.is_turned and not self.looks[medium.kind].is_upright:
            size = size[::-1]
        if medium.kind == VIDEO.kind:
            *before, last = self._successive_frame_sizes(*size, num_frames, medium)
            steps = [*(PixelStep(RESIZE, *each) for each in before), PixelStep(RESIZE_BY_TORCH, *last)]
        elif settings is not None and settings.given_size_settings:
            steps = [PixelStep(RESIZE, *qwen_utils_image_size(settings, *size, self._checked_factor(settings)))]
        else:
            name = getattr(self._image_rule, "operation", BY_PACKAGE)
            steps = [] if self._image_rule is None else [PixelStep(name, *self._image_rule.size(*size))]
        sizes = [size, *(step[1:] for step in steps)]
        return size, [step for step, now in zip(steps, sizes, strict=False) if now != step[1:] or step[0] == BY_PACKAGE]

    def _successive_frame_sizes(self, width: int, height: int, num_frames: int, medium: Media) -> list[tuple[int, int]]:
        """Return the sizes that frames get, one after the other; qwen_vl_utils resizes those of a list twice."""
        settings = medium.settings if medium.settings is not None and medium.settings.given_size_settings else None
        if settings is None and not isinstance(self._video_rule, QwenVLUtilsVideo):
            return [(width, height) if self._video_rule is None else self._video_rule.size(width, height, num_frames)]
        factor = self.factor if settings is None else self._checked_factor(settings)
        settings, sizes = settings or MediumSettings(), []
        if medium.is_list:
            width, height = qwen_utils_image_size(settings, width, height, 2 * factor)
            sizes, num_frames = [(width, height)], num_frames + num_frames % 2
        return [*sizes, qwen_utils_frame_size(settings, width, height, num_frames, factor)]

    def _checked_factor(self, settings: MediumSettings) -> int:
        """Return the side of a token in pixels; raises Skip if the model's rules don't take qwen_vl_utils' settings."""
        if self.factor < 2:
            name = settings.given_size_settings[0]
            raise Skip(
                Reason.UNSUPPORTED_MEDIA,
                f"{name} of a medium is for models whose tokens are squares of pixels, as Qwen-VL's,"
                f" not model.template={self._family}: take it out (media=resize_max_pixels is for all images)",
            )
        return self.factor

    def prepared(self, media: Media, num_frames: int) -> Media:
        """Return a medium in the size in which the processor gets it, by the medium's own settings or `media.*`."""
        if media.kind not in (IMAGE.kind, VIDEO.kind):
            return KINDS[media.kind].prepared(media, self.rules.rate)
        before, steps = self._own_size_and_steps(media, num_frames)
        size, settings = steps[-1][1:] if steps else before, media.settings
        if media.is_heard:
            sound = AUDIO.prepared(media, self.rules.rate)
            media = replace(media, num_samples=sound.num_samples, rate=sound.rate)
        if settings is None and size == (media.width, media.height):
            return media
        settings = settings if media.kind == VIDEO.kind else None
        return replace(media, width=size[0], height=size[1], is_turned=False, settings=settings)


def _look_of(name: str, media: MediaConfig) -> RgbConversion:
    """Return how pictures are decoded (background, rotation): images, or the frames of videos that are lists of images.

    qwen_vl_utils (its `to_rgb`) puts RGBA on white, no other mode, and knows no EXIF orientation.
    """
    background = "" if media.alpha is TransparentPixelColour.auto else media.alpha.value
    if name != "qwen_vl_utils":
        return RgbConversion(background)
    return RgbConversion(background or "white", "" if background else "RGBA", is_upright=False)


def _refuse_changed_pixels(image: Image.Image) -> Image.Image:
    raise ValueError("its pixels were changed by a preprocessor of another package when it was packed: media.image")
