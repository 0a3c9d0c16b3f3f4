"""Videos: one kind of media. A video may be heard, too: then it has a number of samples and a rate."""

import os
from typing import TYPE_CHECKING, Any, BinaryIO

from energon_pack.samples.media.image_kind import random_size
from energon_pack.samples.media.medium import Media, MediaFormat, Medium, first_bytes_pattern, mp4_boxes

if TYPE_CHECKING:
    import numpy as np

_RANDOM_SIDES = (48, 320)  # pixels of random videos
_RANDOM_NUM_FRAMES = (8, 60)
_RANDOM_FPS = (2.0, 10.0, 24.0, 25.0, 30.0)  # frames a second
#: AVIF, HEIF, M4A are other kinds; old QuickTime begins with any box, and no text with a zero, as sizes of small ones
_MP4 = rb"....ftyp(?!avi|hei|hev|mif|msf|M4[AB])|\0...(?:wide|free|skip|pnot)|....(?:mdat|moov)"


def has_whole_boxes(file: BinaryIO) -> bool:
    """Tell whether the outermost boxes of an mp4 end with the file; FFmpeg opens a cut mp4, and reports all frames."""
    end_of = {name: end for name, _, end in mp4_boxes(file)}
    num_behind = file.seek(0, os.SEEK_END) - max(end_of.values(), default=0)
    has_all = b"mdat" in end_of and b"moof" not in end_of  # then so few bytes as no box has are no cut
    return num_behind == 0 or (has_all and 0 < num_behind < 8)


def has_whole_riff(file: BinaryIO) -> bool:
    """Tell whether the RIFF chunk of an AVI ends within the file."""
    end = file.seek(0, os.SEEK_END)
    file.seek(0)
    head = file.read(8)
    return head[:4] != b"RIFF" or 8 + int.from_bytes(head[4:], "little") <= end


class Video(Medium):
    """Videos as a kind of media; a video may also be heard."""

    kind, noun, token_type = "video", "a video", 2
    models = ("qwen3_vl", "qwen2_5_vl", "internvl3_5", "llava_onevision")
    argument, parts = "videos", ("video_processor",)
    is_visual = True
    fields = ("width", "height", "num_frames", "fps", "frames")
    has_picture, colour = True, "green"
    formats = (
        MediaFormat("video", "mp4", first_bytes_pattern(_MP4), also=("mov", "m4v", "3gp"), is_whole=has_whole_boxes),
        MediaFormat("video", "avi", first_bytes_pattern(rb"........AVI "), is_whole=has_whole_riff),
        MediaFormat("video", "mkv", first_bytes_pattern(rb"\x1a\x45\xdf\xa3"), also=("webm",)),
        # it must begin with a list of its programs
        MediaFormat("video", "ts", first_bytes_pattern(rb"G@[\0\x11][\x10-\x1f]")),
        MediaFormat("video", "flv", first_bytes_pattern(rb"FLV\x01")),
        MediaFormat("video", "wmv", first_bytes_pattern(rb"\x30\x26\xb2\x75\x8e\x66\xcf\x11"), also=("asf",)),
        MediaFormat("video", "mpg", first_bytes_pattern(rb"\0\0\x01\xba"), also=("mpeg",)),
    )
    example = Media("video", 320, 240, "mp4", 30, 10.0)

    def probe(self, file: BinaryIO, container: MediaFormat) -> Media:
        """Return the video's size, frames and rate; or a sound, if the container has no pictures."""
        from energon_pack.samples.media.stream_probe import probe_video_or_sound

        return probe_video_or_sound(file, container)

    def said(self, medium: Media) -> str:
        seen = f"a video of {medium.num_frames} frames of {self.size(medium)} at {medium.fps:g} a second"
        if not medium.is_heard:
            return seen
        return f"{seen} with a sound of {medium.num_samples:,} samples at {medium.rate:,} a second"

    def size(self, medium: Media) -> str:
        return f"{medium.width}×{medium.height}"

    def blank(self, medium: Media) -> Any:
        import numpy as np

        return np.zeros((medium.num_frames, medium.height, medium.width, 3), np.uint8)

    def drawn(self, rng: "np.random.Generator", num_frames: tuple[int, int] = _RANDOM_NUM_FRAMES) -> Media:
        size = random_size(rng, *_RANDOM_SIDES)
        return Media(self.kind, *size, "mp4", int(rng.integers(*num_frames)), float(rng.choice(_RANDOM_FPS)))

    def noise(self, medium: Media, rng: "np.random.Generator") -> Any:
        """Return random frames: uint8 [num_frames, height, width, 3]."""
        import numpy as np

        return rng.integers(0, 256, (medium.num_frames, medium.height, medium.width, 3), np.uint8)
