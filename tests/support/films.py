"""Films that players turn, and films beside covers, stills and previews."""

import io
import struct
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest

RED, BLUE = (200, 0, 0), (0, 0, 200)


class Pictures(NamedTuple):
    """A stream of pictures of one colour, brighter in the left upper quarter."""

    codec: str = "mpeg4"
    width: int = 128
    height: int = 64
    num_frames: int = 12
    colour: tuple[int, int, int] = RED
    disposition: str | None = None


COVER = Pictures("mjpeg", 160, 160, 1, BLUE)


def film(
    *streams: Pictures,
    format: str = "mp4",
    turn: Sequence[Any] = (),
    matrix: Sequence[int] = (),
    has_chapter: bool = False,
) -> bytes:
    """A file of some streams at 10 frames a second.

    Args:
        turn: degrees against the clock, and whether it is mirrored to the side, and upside down.
        matrix: nine numbers of a display matrix.
    """
    av = pytest.importorskip("av", reason="videos need PyAV")
    file, packets = io.BytesIO(), []
    with av.open(file, "w", format=format) as container:
        if has_chapter:
            times = {"start": 0, "end": 1, "time_base": Fraction(1)}
            container.set_chapters([{"id": 1, **times, "metadata": {"title": "one"}}])
        for own in streams or (Pictures(),):
            stream: Any = container.add_stream(own.codec, rate=10)
            stream.width, stream.height = own.width, own.height
            stream.pix_fmt = {"mjpeg": "yuvj420p", "png": "rgb24"}.get(own.codec, "yuv420p")
            if own.disposition is not None:
                stream.disposition = getattr(av.stream.Disposition, own.disposition, av.stream.Disposition(0))
            if turn:
                stream.set_display_rotation(*turn)
            if matrix:
                stream.set_display_matrix(matrix)
            pixels = np.full((own.height, own.width, 3), own.colour, np.uint8)
            pixels[: own.height // 2, : own.width // 2] += 50
            for _ in range(own.num_frames):
                frame = av.VideoFrame.from_ndarray(pixels, "rgb24").reformat(format=stream.pix_fmt)
                packets += stream.encode(frame)
            packets += stream.encode()
        for packet in sorted(packets, key=lambda packet: packet.dts * packet.time_base):
            container.mux(packet)
    return file.getvalue()


def turned_by_codec(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield a film of H.264 whose first frame asks to be turned by 90 degrees: the format, and the file."""
    av = pytest.importorskip("av", reason="videos need PyAV")
    from av.bitstream import BitStreamFilterContext

    for format in ("mp4", "mov", "matroska", "mpegts", "avi"):
        file = io.BytesIO()
        with av.open(io.BytesIO(data)) as source, av.open(file, "w", format=format) as container:
            stream = container.add_stream_from_template(source.streams.video[0])
            rule = "h264_metadata=display_orientation=insert:rotate=90"
            asking = BitStreamFilterContext(rule, source.streams.video[0], stream)
            for packet in source.demux(video=0):
                for changed in asking.filter(packet if packet.size else None):
                    changed.stream = stream
                    container.mux(changed)
        yield format, file.getvalue()


def with_cover_first(data: bytes, keep_film: bool = True) -> bytes:
    """Put the cover of an mp4 in front of its film, as other programs do than FFmpeg."""
    place, inside = next((place, box[8:]) for place, name, box in boxes(data) if name == b"moov")
    own = [(name, box) for _, name, box in boxes(inside) if keep_film or name != b"trak"]
    moov = b"".join(box for _, box in sorted(own, key=lambda each: (each[0] != b"mvhd", each[0] != b"udta")))
    return data[:place] + struct.pack(">I4s", len(moov) + 8, b"moov") + moov + data[place + 8 + len(inside) :]


def boxes(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield place, name and bytes of each box."""
    place = 0
    while place < len(data):
        size, name = struct.unpack(">I4s", data[place : place + 8])
        yield place, name, data[place : place + size]
        place += size
