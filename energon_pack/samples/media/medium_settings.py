"""The settings that a record gives one medium, and the keys that give them. The keys are qwen_vl_utils'."""

from dataclasses import dataclass

#: setting → the keys that give it
PIXEL_KEYS = ("min_pixels", "max_pixels", "resized_height", "resized_width", "total_pixels")
NUMBER_OF_FRAMES_KEYS = ("fps", "nframes", "min_frames", "max_frames")
RANGE_KEYS = ("video_start", "video_end")
RATE_KEYS = ("sample_fps", "raw_fps")
#: the key of a number n: the n images from this one on are the frames of one video
FRAMES = "list_of_frames"
#: keys that may apply to all media of a sample, and keys of a content part
SHARED_KEYS = (*PIXEL_KEYS, *NUMBER_OF_FRAMES_KEYS, *RANGE_KEYS, *RATE_KEYS)
SETTING_KEYS = (*SHARED_KEYS, FRAMES)


@dataclass(frozen=True)
class MediumSettings:
    """The settings of one medium; None: the record does not set it."""

    #: pixels in an image or a frame
    min_pixels: float | None = None
    max_pixels: float | None = None
    #: height and width in pixels before rounding to whole tokens; both are set or none
    resized_height: float | None = None
    resized_width: float | None = None
    #: pixels in all frames together
    total_pixels: float | None = None
    #: frames to take from each second; for a list of frames: its frames a second
    fps: float | None = None
    nframes: float | None = None
    min_frames: float | None = None
    max_frames: float | None = None
    #: seconds
    video_start: float | None = None
    video_end: float | None = None
    #: for a list of frames: its frames a second, and the frames a second of the video they were taken from
    sample_fps: float | None = None
    raw_fps: float | None = None
    list_of_frames: int | None = None

    @property
    def pixels(self) -> list[str]:
        """Return the keys that resize pixels."""
        return [key for key in PIXEL_KEYS if getattr(self, key) is not None]

    @property
    def counts_frames(self) -> bool:
        """Tell whether they set how many frames are taken."""
        return any(getattr(self, key) is not None for key in NUMBER_OF_FRAMES_KEYS)

    @property
    def is_range(self) -> bool:
        """Tell whether they select only a part of the clip."""
        return self.video_start is not None or self.video_end is not None
