"""Reads how many samples a sound has, and its rate.

Headers of some files say exactly how many samples the decoder gives; `sound_headers` reads them. In other files
delays, paddings and cuts hide samples, so the decoder that training uses decodes and counts the sound.
"""

from typing import Any, BinaryIO

from energon_pack.samples.media.audio import pieces_in
from energon_pack.samples.media.medium import MediaFormat
from energon_pack.samples.media.sound_headers import plain_sound
from energon_pack.samples.media.sound_mp3 import CutShortError
from energon_pack.samples.media.streams import opened, probing
from energon_pack.samples.skip import Reason, Skip

_LONGEST = 4 * 3600  # seconds: a longer sound, decoded, would fill the memory, and no model hears so much


def probe_audio(file: BinaryIO, container: MediaFormat) -> tuple[int, int]:
    """Return how many samples a sound has in each channel, and how many there are in a second.

    Raises:
        Skip: `unreadable_media` if the file is cut short, too long or holds no sound, `unsupported_media` without PyAV.
    """
    _check_whole(file, container)
    try:
        found = plain_sound(file, container.extension)
    except CutShortError as error:
        raise Skip(Reason.UNREADABLE_MEDIA, f"the sound is cut short: {error}") from None
    if found is None:
        with probing("sound"), opened(file) as opened_file:
            found = decoded_length(opened_file)
    return checked_length(*found)


def checked_length(num_samples: int, rate: int) -> tuple[int, int]:
    """Return what it was given; raises Skip if no sound has so many samples, or a model would not hear so many."""
    if not (num_samples and 0 < rate < 1 << 31):  # more is no rate to FFmpeg
        raise Skip(Reason.UNREADABLE_MEDIA, f"a sound of {num_samples} samples, {rate} a second")
    if num_samples > _LONGEST * rate:
        raise Skip(Reason.UNREADABLE_MEDIA, f"a sound of {num_samples / rate / 3600:.1f} hours: more than 4")
    return num_samples, rate


def _check_whole(file: BinaryIO, container: MediaFormat) -> None:
    if container.is_whole and not container.is_whole(file):
        raise Skip(Reason.UNREADABLE_MEDIA, "the sound is cut short")


def decoded_length(container: Any) -> tuple[int, int]:
    """Decode the sound of a file that PyAV has opened; return its number of samples, and its samples a second.

    Raises:
        Skip: `unreadable_media` if it can't be decoded.
    """
    num_samples = rate = 0
    with probing("sound"):
        for piece, rate in pieces_in(container):
            num_samples += len(piece)
            if num_samples > _LONGEST * rate:
                break
    return num_samples, rate
