"""Reads size, rate and number of frames of a video from its header."""

from typing import Any, BinaryIO

from energon_pack.samples.media.medium import MediaFormat
from energon_pack.samples.media.streams import film, opened, probing
from energon_pack.samples.media.video import upright
from energon_pack.samples.media.video_headers import plainly_upright
from energon_pack.samples.skip import Reason, Skip

_HIDDEN = 0.01  # fraction of a frame that counts as a rounding error


def probe_video(file: BinaryIO, container_format: MediaFormat | None) -> tuple[int, int, int, float]:
    """Return upright width and height, number of frames and frames a second of a video.

    No frame is decoded, but the first of a video that may be turned.

    Raises:
        Skip: `unreadable_media` if it is cut short or holds no film; `unsupported_media` without PyAV, or if players
            turn it by another angle than a right one.
    """
    if container_format and container_format.is_whole and not container_format.is_whole(file):
        raise Skip(Reason.UNREADABLE_MEDIA, "the video is cut short")
    with probing("video"), opened(file) as container:
        stream = film(container)
        num_frames = _num_shown(container, stream)
        rate = stream.average_rate or stream.guessed_rate
        width, height = stream.codec_context.width, stream.codec_context.height
    if not (width and height and num_frames and rate):
        raise Skip(
            Reason.UNREADABLE_MEDIA, f"a video of {num_frames} frames of {width}×{height} pixels, {rate} a second"
        )
    if not (container_format and plainly_upright(file, container_format.extension)):
        with probing("video"), opened(file) as container:
            width, height = upright(next(container.decode(film(container)))).size
    return width, height, num_frames, float(rate)


def _num_shown(container: Any, stream: Any) -> int:
    """Count the frames of a video that a player shows, without decoding any.

    The index of an mp4 lists more frames if an edit list hides the frames before a cut (`ffmpeg -ss … -c copy`).

    Raises:
        ValueError: some of its packets are damaged.
    """
    if stream.frames and not container.format.name.startswith("mov"):
        return int(stream.frames)
    if stream.frames and hasattr(stream, "index_entries"):  # an older PyAV does not tell
        entries = stream.index_entries
        seconds, rate = stream.duration and stream.duration * stream.time_base, stream.average_rate
        if seconds and rate and len(entries) == stream.frames and abs(seconds * rate - stream.frames) < _HIDDEN:
            return int(stream.frames)  # the duration covers all frames: none is hidden
        return sum(not entry.is_discard for entry in entries)
    packets = [packet for packet in container.demux(stream) if packet.size]
    if damaged := sum(packet.is_corrupt for packet in packets):
        raise ValueError(f"{damaged} of {len(packets)} packets are damaged")
    return sum(not packet.is_discard for packet in packets)
