"""Base classes of a family's media rules, which give the text that one image or video becomes."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np

from energon_pack.errors import PackError
from energon_pack.samples.media.kinds import KINDS, VIDEO
from energon_pack.samples.media.medium import Media
from energon_pack.samples.skip import Reason, Skip

#: settings that choose the frames of a video
FRAME_KEYS = ("do_sample_frames", "fps", "num_frames", "min_frames", "max_frames")
_MAX_CACHED_EXPANSIONS = 256  # images have few sizes in most sets


@dataclass(frozen=True)
class ProcessorSettings:
    """The settings of a transformers processor and of its parts, as plain data."""

    image: dict[str, Any] = field(default_factory=dict)  # of its image processor
    video: dict[str, Any] = field(default_factory=dict)  # of its video processor
    audio: dict[str, Any] = field(default_factory=dict)  # of its feature extractor for sounds
    others: dict[str, dict[str, Any]] = field(default_factory=dict)  # of its parts for kinds that packages add
    processor: dict[str, Any] = field(default_factory=dict)  # settings of the processor itself
    tokens: dict[str, str] = field(default_factory=dict)  # image_token, bos_token … of its tokenizer
    folder: str = ""  # the folder from which the full processor is loaded
    kwargs: dict[str, Any] = field(default_factory=dict)
    changed: dict[str, dict[str, Any]] = field(default_factory=dict)  # by kind: settings that `media` changes
    written: dict[str, str] = field(
        default_factory=dict
    )  # by kind: the text that the chat template writes for a medium


class MediaRules:
    """Computes the text (so the number of tokens) that a processor writes for a medium; each family has a subclass."""

    #: transformers' classes of processors that count media by these rules
    processors: Sequence[str] = ()
    #: whether the video processor knows `min_pixels` and `max_pixels`, older names of the edges of `size`
    has_pixel_limits = True

    #: the text that the chat template writes for one medium, by kind; other kinds are not supported
    media_tokens: dict[str, str]
    #: the token that holds visual features, by kind, if it differs
    feature_tokens: Mapping[str, str] = MappingProxyType({})
    #: tokens that the processor puts around media
    mark_tokens: Sequence[str] = ()
    #: by kind, why media that the processor takes can't be expanded
    reason_by_kind: Mapping[str, str] = MappingProxyType({})
    #: everything that `expand` depends on
    settings: dict[str, Any]
    #: how the processor chooses frames, in families that see videos
    frames: "FrameSampling"
    #: size of frames, if the video processor's own setting does not fit the model
    forced_frame_size: dict[str, int] | None = None
    #: samples per second of sounds; 0: it takes no sounds
    rate: int = 0
    #: whether its call can put the sound of a video between the frames
    hears_videos: bool = False
    #: why not, for a message, where its call refuses one
    why_no_sound: str = ""
    #: whether its call takes several images of one text as a nested list, `[[image, image]]`
    nests_images: bool = False
    _processor_settings: ProcessorSettings

    def __new__(cls, processor: ProcessorSettings) -> "MediaRules":
        rules = super().__new__(cls)
        rules._processor_settings = processor
        return rules

    def __init__(self, processor: ProcessorSettings):
        raise NotImplementedError

    @property
    def feature_tokens_by_kind(self) -> dict[str, str]:
        """Return by kind of media the token that holds its features."""
        return {**self.media_tokens, **self.feature_tokens}

    def __reduce__(self) -> tuple[type["MediaRules"], tuple[ProcessorSettings]]:
        """Pickle only the processor's settings: the cached sizes stay in this process."""
        return type(self), (self._processor_settings,)

    def refuse_unusable_settings(self) -> None:
        """Expand an example of each kind of media, so that unusable settings raise one error before any sample.

        Raises:
            PackError: the processor's own call gives no usable answer.
            TypeError, ValueError, KeyError, AttributeError, ArithmeticError: its settings make no sense to the rules.
        """
        for kind in self.media_tokens:
            media = KINDS[kind].example
            with suppress(Skip):
                self.expand(media, self.frames.choose(media) if kind == VIDEO.kind else [])

    def expand_all(self, media: Sequence[Media], frame_indices: Sequence[Sequence[int]]) -> list[tuple[str, int]]:
        """Return text and number of feature tokens for each medium of a sample; results of `expand` are cached."""
        return [self._cached_expand(medium, tuple(chosen)) for medium, chosen in zip(media, frame_indices, strict=True)]

    def needs_equal_frame_counts(self) -> bool:
        """Say whether clips of one batch need equally many frames, because the call stacks them: [clip, frame, …]."""
        return False

    def placeholder(self, kind: str) -> str:
        """Return the text that marks a medium of this kind in the text for the full processor, such as `<image>`."""
        return self.media_tokens[kind]

    def surrounding_texts(self, media: Sequence[Media], frames: Sequence[Sequence[int]]) -> tuple[str, str]:
        """Return the texts that the processor adds before and after a whole conversation with these media."""
        return "", ""

    @cached_property
    def _cached_expand(self) -> Callable[[Media, tuple[int, ...]], tuple[str, int]]:
        return lru_cache(_MAX_CACHED_EXPANSIONS)(self.expand)

    def call_settings(self, processor: ProcessorSettings) -> dict[str, dict[str, Any]]:
        """Return by kind the media settings to pass to the processor's call, without those that choose frames."""
        video = {key: value for key, value in processor.changed.get(VIDEO.kind, {}).items() if key not in FRAME_KEYS}
        if self.forced_frame_size:
            video["size"] = self.forced_frame_size
        return {**processor.changed, VIDEO.kind: video}

    def expand(self, medium: Media, frame_indices: Sequence[int]) -> tuple[str, int]:
        """Return the text that stands for a medium, and how many of its tokens hold features.

        Raises Skip for a size that the processor refuses.

        Args:
            frame_indices: the indices of a video's chosen frames; empty for other media.
        """
        raise NotImplementedError


class TextRules(MediaRules):
    """The rules of a model without media: samples with media are left out."""

    def __init__(self, processor: ProcessorSettings):
        self.media_tokens: dict[str, str] = {}
        self.settings: dict[str, Any] = {}


def positive_int(settings: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """Return a setting that must be a whole number above 0; raises PackError if it is not."""
    value = settings.get(name)
    value = default if value is None else value
    if value is None:
        raise PackError(
            f"model.processor's settings have no {name}: its folder lacks preprocessor_config.json, which lies beside"
            " the model's tokenizer where it is published, or it is another family's processor"
        )
    value = int(value) if isinstance(value, float) and value.is_integer() else value  # 50176.0
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise PackError(
            f"{name} of model.processor's settings is {value!r}, not a whole number above 0: it is another family's"
            " processor, or model.processor_kwargs break it"
        )
    return value


class FrameSampling:
    """Chooses frames like transformers' video processors: all, if `do_sample_frames` is off; else `num_frames`, or
    `fps` frames a second.
    """

    #: whether frames are repeated if more are requested than there are
    repeats_frames = False

    def __init__(self, video: Mapping[str, Any]):
        self.settings: dict[str, Any] = {
            name: video.get(name)
            for name in ("do_sample_frames", "num_frames", "fps", "min_frames", "max_frames", "initial_shift")
        }
        for name in ("num_frames", "min_frames", "max_frames"):
            if self.settings[name] is not None:
                positive_int(self.settings, name)
        if self.settings["fps"] is not None and not self.settings["fps"] > 0:
            raise PackError(f"fps={self.settings['fps']} of the video settings: must be more than 0")
        if self.settings["fps"] is not None and self.settings["num_frames"] is not None:
            raise PackError("the video settings have both fps and num_frames: one of them says how many frames")

    def choose(self, video: Media) -> list[int]:
        """Return the indices of the chosen frames, ascending."""
        total = video.num_frames
        if not self.settings["do_sample_frames"]:
            return list(range(total))
        number = self.num_wanted(video)
        if number < 1 or (number > total and not self.repeats_frames):
            raise Skip(Reason.UNREADABLE_MEDIA, f"{number} frames are asked for, the video has {total}")
        return self.spread_indices(total, number)

    def num_wanted(self, video: Media) -> int:
        """Return how many frames to choose from a video."""
        if self.settings["num_frames"] is not None:
            return int(self.settings["num_frames"])
        if self.settings["fps"] is None:
            return video.num_frames
        return int(video.num_frames / video.fps * self.settings["fps"])

    def spread_indices(self, num_frames: int, num_chosen: int) -> list[int]:
        """Return the indices of about `num_chosen` frames at equal distances, out of `num_frames`."""
        step = num_frames / num_chosen
        first = step / 2 if self.settings["initial_shift"] is True else float(self.settings["initial_shift"] or 0)
        indices = [int(np.float32(first + step * i)) for i in range(math.ceil((num_frames - first) / step))]
        return [index for index in indices if index < num_frames]  # single precision may round up beyond the last frame
