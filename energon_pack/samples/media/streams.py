"""Opens videos and sounds with PyAV, and chooses the stream that a player plays."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from energon_pack.samples.skip import Reason, Skip

_FORMATS = "mov,avi,matroska,mpegts,flv,asf,mpeg,wav,flac,ogg,mp3,aac,aiff"  # FFmpeg's names of `formats.FORMATS`
#: other formats (playlists, lists of files, SDP) let FFmpeg open any file or address that they name
_ONLY = {"format_whitelist": _FORMATS, "protocol_whitelist": "-"}
_PICTURES = frozenset(("mjpeg", "png", "bmp", "gif", "tiff", "webp"))  # codecs of covers and previews
_COVERS = "attached_pic", "timed_thumbnails", "still_image"


class UndecodableError(ValueError):
    """The frames of a video, or the samples of a sound, can't be decoded."""


@contextmanager
def opened(file: BinaryIO) -> Iterator[Any]:
    """Open a video or a sound from its beginning.

    Raises:
        ImportError: PyAV is not installed.
    """
    av: Any = importlib.import_module("av")
    file.seek(0)
    with av.open(file, mode="r", metadata_errors="replace", container_options=_ONLY) as container:
        yield container


def film(container: Any) -> Any:
    """Return the stream of pictures that a player shows.

    It is FFmpeg's best (`av_find_best_stream`: by the flag `default`, then by frames and bits), as in torchcodec,
    ffplay and decord; but beside a film no cover, no single picture, and no stream of a codec of pictures.

    Raises:
        UndecodableError: there is none.
    """
    streams = [stream for stream in container.streams.video if not is_cover(stream)]
    if not streams:
        raise UndecodableError(f"there is no film in it{', only a cover' if container.streams.video else ''}")
    best = container.streams.best("video")

    def rank(stream: Any) -> tuple[bool, bool, bool, int]:
        codec = stream.codec_context
        return stream.frames != 1, codec.name not in _PICTURES, stream is best, codec.width * codec.height

    return max(streams, key=rank)


def is_cover(stream: Any) -> bool:
    """Tell whether a stream of pictures is a cover, a thumbnail or a still, by what the container says."""
    return any(stream.disposition & getattr(type(stream.disposition), name) for name in _COVERS)


@contextmanager
def probing(noun: str) -> Iterator[None]:
    """Turn errors of PyAV into the reason why a sample is left out."""
    try:
        yield
    except Skip:
        raise
    except ImportError:
        raise Skip(Reason.UNSUPPORTED_MEDIA, f"{noun}s need PyAV: pip install 'energon-pack[video]'") from None
    except Exception as error:  # damaged bytes make FFmpeg raise anything, and each costs only its sample
        raise Skip(Reason.UNREADABLE_MEDIA, f"not a readable {noun}: {str(error) or type(error).__name__}") from None
