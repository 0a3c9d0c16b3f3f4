"""Reads size, rate and number of frames of a video from its header."""

import os
from typing import Any, BinaryIO

from energon_pack.samples.media.medium import SOUNDS_LIKE, Media, MediaFormat
from energon_pack.samples.media.sound_probe import decoded_length
from energon_pack.samples.media.streams import film, is_cover, opened, probing
from energon_pack.samples.media.video import upright
from energon_pack.samples.skip import Reason, Skip

_HIDDEN = 0.01  # fraction of a frame that counts as a rounding error
_MOST_HEADER = 16 << 20  # bytes that are searched for what turns a picture
_MATRIX = bytes.fromhex("00010000" + "00" * 12 + "00010000" + "00" * 12 + "40000000")  # of an mp4: it changes nothing
_TRACKS, _CLUSTER, _PROJECTION = b"\x16\x54\xae\x6b", b"\x1f\x43\xb6\x75", b"\x76\x70"  # of a Matroska


def probe_video(file: BinaryIO, container_format: MediaFormat) -> Media:
    """Return a video with its upright width and height, or the sound of a container that holds no pictures.

    No frame is decoded, but the first of a video that may be turned.
    """
    if container_format.is_whole and not container_format.is_whole(file):
        raise Skip(Reason.UNREADABLE_MEDIA, "the video is cut short")
    extension = container_format.extension
    with probing("video"), opened(file) as container:
        if extension in SOUNDS_LIKE and container.streams.audio and all(map(is_cover, container.streams.video)):
            num_samples, hertz = decoded_length(container)
            return Media("audio", extension=SOUNDS_LIKE[extension], num_samples=num_samples, rate=hertz)
        stream = film(container)
        num_frames = _num_shown(container, stream)
        rate = stream.average_rate or stream.guessed_rate
        width, height = stream.codec_context.width, stream.codec_context.height
    if not (width and height and num_frames and rate):
        raise Skip(
            Reason.UNREADABLE_MEDIA, f"a video of {num_frames} frames of {width}×{height} pixels, {rate} a second"
        )
    if not _is_plainly_upright(file, extension):
        with probing("video"), opened(file) as container:
            width, height = upright(next(container.decode(film(container)))).size
    return Media("video", width, height, extension, num_frames, float(rate))


def _is_plainly_upright(file: BinaryIO, extension: str) -> bool:
    """Tell whether a container surely asks players not to turn its pictures; only mp4 and Matroska can ask it."""
    if extension == "mp4":
        tables = _moov(file)
        return bool(tables) and tables.count(_MATRIX) == tables.count(b"mvhd") + tables.count(b"tkhd")
    if extension == "mkv":
        file.seek(0)
        header, cluster, _ = file.read(_MOST_HEADER).partition(_CLUSTER)
        return bool(cluster) and _TRACKS in header and _PROJECTION not in header
    return True


def _moov(file: BinaryIO) -> bytes:
    """Return the tables of an mp4; empty: there are none, or they are too large."""
    end, position = file.seek(0, os.SEEK_END), 0
    while position + 8 <= end:
        file.seek(position)
        head = file.read(16)
        size = int.from_bytes(head[:4], "big")
        size = int.from_bytes(head[8:], "big") if size == 1 else size or end - position
        if head[4:8] == b"moov" and size <= _MOST_HEADER:
            file.seek(position)
            return file.read(size)
        if size < 8:
            break
        position += size
    return b""


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
