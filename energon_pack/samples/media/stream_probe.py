"""Reads how many samples a sound has, how many frames a video, and their rate, by the decoder that training uses.

Only a WAV of integers is counted by its header. A WAV, an AIFF or an MP3 that lacks its end decodes without an error:
their headers say what is missing.
"""

import importlib
import math
import os
import re
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from itertools import chain, islice, pairwise
from typing import Any, BinaryIO, NamedTuple

from energon_pack.run.untrusted_input import bounded_memory_and_time
from energon_pack.samples.media.medium import SOUND_EXTENSION_OF, Media, MediaFormat
from energon_pack.samples.media.streams import (
    decode_sound_in_pieces,
    find_shown_video_stream,
    is_cover_stream,
    may_turn_pictures,
    open_video_frames,
    opened_container,
    turn_pyav_errors_into_skip,
    upright_picture,
)
from energon_pack.samples.skip import Reason, Skip

_DECODED_PACKETS = 16  # the first packets of a video: as many as the largest group of frames that wait for one another
_VP8_IS_SHOWN = 0x10  # in the first byte of a frame
_MAX_DROPPED_BYTES = 16  # of a frame of MPEG-4 that repeats the last one
#: how much memory reading a header may take: bytes, and times the bytes of the file
_MIN_MEMORY_BYTES, _MEMORY_PER_BYTE = 1 << 30, 16
_CLOCK_MAY_JUMP = 0x200  # FFmpeg's AVFMT_TS_DISCONT, of MPEG's streams
_MAX_STEP = 10  # seconds between two frames there: `-dts_delta_threshold` of ffmpeg
_ROUNDING = 0.01  # fraction of a frame that counts as a rounding error
_MAX_SECONDS = 4 * 3600  # seconds: a longer sound, decoded, would fill the memory, and no model hears so much
_MAX_CHUNKS = 1000
_MAX_BYTES_BEFORE_FRAME = 4096  # between the tags of an MP3 and its first frame
#: the first frame of an MP3 that holds the number of frames, as Xing (with the flag for it) or Fraunhofer writes it
_FRAME_COUNT = re.compile(
    rb"\xff[\xe2\xe3\xf2\xf3\xfa\xfb]..(?:(?:.{9}|.{17}|.{32})(?:Xing|Info)...[\1\3\5\7\x09\x0b\x0d\x0f]|.{32}VBRI)",
    re.DOTALL,
)
#: sizes of data that programs write before they know its end, and into a pipe never correct; 0 is another
_UNKNOWN_SIZES = tuple(range(most - 64, most + 1) for most in (0x7F000024, 0x7FFFF000, 0x80000000, 0xFFFFFFFF))
_CHUNKS_WITHOUT_SAMPLES = (b"LIST", b"id3 ", b"fact", b"cue ", b"bext")  # chunks that FFmpeg decodes behind empty data


@contextmanager
def _opened(file: BinaryIO, noun: str) -> Iterator[Any]:
    """Open a video or a sound with PyAV (`noun`: which), within the memory that reading its header may take.

    A header may promise millions of frames in a few bytes, and FFmpeg lists each. Raises Skip.
    """
    most = _MIN_MEMORY_BYTES + _MEMORY_PER_BYTE * file.seek(0, os.SEEK_END)
    with turn_pyav_errors_into_skip(noun), bounded_memory_and_time(most), opened_container(file) as container:
        yield container


def probe_sound_length(file: BinaryIO, container: MediaFormat) -> tuple[int, int]:
    """Return a sound's number of samples in each channel, and its rate in samples a second; raises Skip."""
    if container.is_whole and not container.is_whole(file):
        raise _cut_short_skip("its last part is missing")
    if container.extension in ("wav", "aiff") and (counted := _length_from_header(file, container.extension == "wav")):
        return checked_sound_length(*counted)
    is_promised = container.extension != "mp3" or _has_frame_count(file)
    with _opened(file, "sound") as opened_file:
        return measure_sound_by_decoding(opened_file, is_promised)


def probe_sound_length_of_video(file: BinaryIO) -> tuple[int, int] | None:
    """Return the number of samples and the rate of a video's sound; None: the video has no sound."""
    with _opened(file, "video") as container:
        return measure_sound_by_decoding(container) if container.streams.audio else None


def _has_frame_count(file: BinaryIO) -> bool:
    """Tell whether an MP3 says how many frames it has; where it does not, FFmpeg guesses by the file's bytes."""
    position, head = 0, b""
    for _ in range(_MAX_CHUNKS):
        file.seek(position)
        head = file.read(_MAX_BYTES_BEFORE_FRAME)
        if not head.startswith(b"ID3"):
            break
        position += 10 + sum(byte << shift for byte, shift in zip(head[6:10], (21, 14, 7, 0), strict=False))
    return _FRAME_COUNT.search(head) is not None


def measure_sound_by_decoding(container: Any, is_length_promised: bool = True) -> tuple[int, int]:
    """Decode the sound of a file that PyAV has opened; return its number of samples, and its samples a second.

    `is_length_promised`: whether an MP3 or a FLAC with fewer samples than FFmpeg expects is cut short. Raises Skip.
    """
    num_samples = rate = 0
    with turn_pyav_errors_into_skip("sound"):
        for piece, rate in decode_sound_in_pieces(container):
            num_samples += len(piece)
            if num_samples > _MAX_SECONDS * rate:
                break
        checked_sound_length(num_samples, rate)
        stream = container.streams.best("audio")
        promised = round((stream.duration or 0) * stream.time_base * rate)
        if is_length_promised and container.format.name in ("mp3", "flac") and num_samples < promised - 1:
            raise _cut_short_skip(f"its header promises {promised:,} samples, {num_samples:,} are there")
    return num_samples, rate


def checked_sound_length(num_samples: int, rate: int) -> tuple[int, int]:
    """Return both arguments; raises Skip if there are no samples, the rate is invalid, or it is over 4 hours long."""
    if not (num_samples and 0 < rate < 1 << 31):  # more is no rate to FFmpeg
        raise Skip(Reason.UNREADABLE_MEDIA, f"a sound of {num_samples} samples, {rate} a second")
    if num_samples > _MAX_SECONDS * rate:
        raise Skip(Reason.UNREADABLE_MEDIA, f"a sound of {num_samples / rate / 3600:.1f} hours: more than 4")
    return num_samples, rate


def _length_from_header(file: BinaryIO, is_wav: bool) -> tuple[int, int] | None:
    """Return number of samples and rate of a WAV of integers from its header; None: the file must be decoded."""
    order: Any = "little" if is_wav else "big"
    end, block, rate = file.seek(0, os.SEEK_END), 0, 0
    file.seek(4)
    whole, position = int.from_bytes(file.read(4), order), 12
    sizes_of_64_bits: tuple[int, int] | None = None
    for _ in range(_MAX_CHUNKS):
        file.seek(position)
        name, size = file.read(4), int.from_bytes(file.read(4), order)
        position += 8
        if name == b"fmt " and is_wav:
            kind, channels, rate, _, block, bits = struct.unpack("<HHIIHH", file.read(16).ljust(16, b"\0"))
            is_plain = kind == 1 and bits in (8, 16, 24, 32) and channels > 0 and block == channels * bits // 8
            block = block if is_plain else 0
        elif name == b"ds64":
            sizes_of_64_bits = struct.unpack("<QQ", file.read(16).ljust(16, b"\0"))
        elif name in (b"data", b"SSND"):
            if sizes_of_64_bits and size == 0xFFFFFFFF:
                whole, size = sizes_of_64_bits
            is_known = size > 0 and not any(size in sizes for sizes in _UNKNOWN_SIZES)
            if is_known and size > end - position and whole + 8 - end not in (-1, 0):
                raise _cut_short_skip(f"its header promises {size:,} bytes, {end - position:,} are there")
            if not size and file.read(4) in (*_CHUNKS_WITHOUT_SAMPLES, b""):
                return 0, rate
            return (size // block, rate) if block and 0 < size <= end - position else None
        elif len(name) < 4:
            break
        position += size + size % 2
    raise _cut_short_skip(f"{end} bytes do not hold its header")


def _cut_short_skip(why: str) -> Skip:
    return Skip(Reason.UNREADABLE_MEDIA, f"the sound is cut short: {why}")


def is_container_without_pictures(file: BinaryIO) -> bool:
    """Tell whether a container of videos holds sounds and no pictures, without decoding any; raises Skip."""
    with _opened(file, "video") as container:
        return _has_no_pictures(container)


def _has_no_pictures(container: Any) -> bool:
    return bool(container.streams.audio) and all(map(is_cover_stream, container.streams.video))


def probe_video_or_sound(file: BinaryIO, container_format: MediaFormat) -> Media:
    """Return the upright size, number of frames and rate of a video, or a sound if the container has no pictures.

    All frames are decoded only if packets do not tell their number. Raises Skip.
    """
    if container_format.is_whole and not container_format.is_whole(file):
        raise Skip(Reason.UNREADABLE_MEDIA, "the video is cut short")
    extension = container_format.extension
    with _opened(file, "video") as container:
        if extension in SOUND_EXTENSION_OF and _has_no_pictures(container):
            num_samples, hertz = measure_sound_by_decoding(container)
            return Media("audio", extension=SOUND_EXTENSION_OF[extension], num_samples=num_samples, rate=hertz)
        stream = find_shown_video_stream(container)
        shown = _shown_frames(container, stream)
        rate = stream.average_rate or stream.guessed_rate
        width, height = stream.codec_context.width, stream.codec_context.height
        format_name, max_step = container.format.name, _max_step(container)
    if shown is None:
        with turn_pyav_errors_into_skip("video"):
            times = decode_frame_times(file)
            shown = _Shown(len(times), _seconds(times, times, max_step))
    num_frames = shown.num_frames
    if not format_name.startswith("mov"):  # the tables of an mp4 list how long each frame is shown
        rate = _checked_rate(rate, shown)
    if not (width and height and num_frames and rate):
        raise Skip(
            Reason.UNREADABLE_MEDIA, f"a video of {num_frames} frames of {width}×{height} pixels, {rate} a second"
        )
    if may_turn_pictures(file, format_name):
        with (
            turn_pyav_errors_into_skip("video"),
            opened_container(file) as container,
        ):  # its header was read within the bound
            width, height = upright_picture(next(container.decode(find_shown_video_stream(container)))).size
    return Media("video", width, height, extension, num_frames, float(rate))


class _Shown(NamedTuple):
    """The frames of a video that a player shows."""

    num_frames: int
    seconds: float = math.nan  # from the first frame to the last; NaN: unknown


def _checked_rate(rate: Fraction | None, shown: _Shown) -> Fraction | float | None:
    """Return the frames a second that a header says, or those that the times of the frames say, if these differ.

    Headers name the rate of a camera or FFmpeg's guess from the first frames, and the rate may change later. The last
    frame then has its own time as (num_frames - 1) / rate; how long it is shown, these containers do not say.
    """
    steps = shown.num_frames - 1
    if not (steps > 0 and shown.seconds > 0) or (rate and abs(shown.seconds * rate - steps) <= 1):
        return rate
    return steps / shown.seconds


def _max_step(container: Any) -> float:
    """Return the most seconds between two frames; more is a jump of the clock, as `ffmpeg` sees it."""
    return _MAX_STEP if container.format.flags & _CLOCK_MAY_JUMP else math.inf


def _seconds(times: list[float], order: list[float], max_step: float) -> float:
    """Return the seconds from the least to the greatest of `times`; NaN: one is missing, or the clock jumps.

    `order`: times that ascend, by at most `max_step`, unless the clock jumps.
    """
    is_steady = all(0 <= after - before <= max_step for before, after in pairwise(order))
    is_known = times and is_steady and not any(map(math.isnan, times))
    return round(max(times) - min(times), 6) if is_known else math.nan  # a tick is longer than a microsecond


def _shown_frames(container: Any, stream: Any) -> _Shown | None:
    """Count the frames of a video that a player shows; None: only decoding all of them tells.

    The index of an mp4 lists more frames if an edit list hides the frames before a cut (`ffmpeg -ss … -c copy`). Where
    nothing hides them, a decoder drops those that are shown before the first frame, and build on frames before the cut.
    """
    packets = (packet for packet in container.demux(stream) if packet.size)
    if not (container.format.name.startswith("mov") and stream.frames and hasattr(stream, "index_entries")):
        return _shown_by_packets(container, stream, packets)  # an older PyAV shows no index
    if not len(stream.index_entries):  # FFmpeg had no memory for it, and goes on
        raise ValueError(f"its header promises {stream.frames:,} frames, more than so small a file can list")
    first = [*islice(packets, 2 if stream.codec_context.has_b_frames else 0)]
    if len(first) > 1 and first[1].pts < first[0].pts and not first[1].is_discard:
        return _shown_by_packets(container, stream, chain(first, packets))
    entries = [entry for entry in stream.index_entries if entry.size > 0]
    seconds, rate = stream.duration and stream.duration * stream.time_base, stream.average_rate
    if seconds and rate and len(entries) == stream.frames and abs(seconds * rate - stream.frames) < _ROUNDING:
        return _Shown(int(stream.frames))  # the duration covers all frames: none is hidden
    return _Shown(sum(not entry.is_discard for entry in entries))


def _shown_by_packets(container: Any, stream: Any, packets: Iterator[Any]) -> _Shown | None:
    """Count the packets with bytes, because headers may count others; None: packets are not frames in this video.

    Its first packets are decoded to see that: after a cut some lack what they build on, and others are half a frame.
    """
    first = [*islice(packets, _DECODED_PACKETS)]
    num_packets = num_damaged = num_doubtful = 0
    times: list[float] = []
    order: list[float] = []
    tick = float(stream.time_base)
    for packet in chain(first, packets):
        num_packets += 1
        num_damaged += packet.is_corrupt
        num_doubtful += _may_show_no_frame(packet, stream.codec_context.name)
        if packet.dts is not None:
            order.append(packet.dts * tick)
        if not packet.is_discard:
            time = packet.dts if packet.pts is None else packet.pts
            times.append(math.nan if time is None else time * tick)
    if num_damaged:
        raise ValueError(f"{num_damaged} of {num_packets} packets are damaged")
    decoded = (frame for packet in (*first, None) for frame in stream.codec_context.decode(packet))
    num_tried = sum(1 for _ in times_of_frames(decoded))
    is_plain = num_tried == sum(not packet.is_discard for packet in first) and not num_doubtful
    return _Shown(len(times), _seconds(times, order, _max_step(container))) if is_plain else None


def _may_show_no_frame(packet: Any, codec: str) -> bool:
    """Tell whether a packet may show no frame: a reference of VP8, or a frame of MPEG-4 that says only to drop it."""
    if codec == "vp8":
        return not memoryview(packet)[0] & _VP8_IS_SHOWN
    return codec == "mpeg4" and int(packet.size) <= _MAX_DROPPED_BYTES


def decode_frame_times(file: BinaryIO) -> list[float]:
    """Decode all frames of a video, and return their times as `times_of_frames` does; raises PyAV's errors, too."""
    with opened_container(file) as container:
        return [*times_of_frames(container.decode(find_shown_video_stream(container)))]


def times_of_frames(frames: Iterable[Any]) -> Iterator[float]:
    """Yield the time in seconds when each decoded frame is shown, NaN if the file does not say.

    Raises Skip (`unsupported_media`) if the frames have several sizes.
    """
    first: tuple[int, int] | None = None
    for frame in frames:
        size = frame.width, frame.height
        first = first or size
        if size != first:
            sizes = " to ".join(f"{width}×{height}" for width, height in (first, size))
            raise Skip(Reason.UNSUPPORTED_MEDIA, f"a film whose pictures change from {sizes} pixels: cut it there")
        yield math.nan if frame.time is None else frame.time


def frame_times(data: bytes) -> list[float]:
    """Return the times of all frames as `times_of_frames` does; raises ValueError if they can't be decoded."""
    av: Any = importlib.import_module("av")
    times: list[float] = []
    try:
        with open_video_frames(av, data) as (_, shown):
            times.extend(times_of_frames(shown))
    except av.FFmpegError as error:
        raise ValueError(f"a video can't be decoded after {len(times)} frames: {error}") from None
    return times
