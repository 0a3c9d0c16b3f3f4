"""Decode videos as trainings do: all frames by this package's decoder, some by Energon's.

Energon 7.4.1's AVDecoder seeks a frame by its container's index of keyframes. Where the index has other times than the
frames, as in every AVI of H.264, it lands on another keyframe: its frames are wrong, or FFmpeg's seek fails with
`[Errno 1] Operation not permitted`. The file is whole, and decodes well from its start.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median

from energon_pack.dataset.energon import frame_by_energon
from energon_pack.dataset.folder import DatasetFolder
from energon_pack.errors import short
from energon_pack.run.files import META_FOLDER
from energon_pack.run.plain_data import yaml_value
from energon_pack.samples.media.medium import Media
from energon_pack.samples.media.streams import frame_times

_NUM_ASKED = 8  # frames that Energon is asked for, from the first to the last


def decoded_by_us(medium: Media, data: bytes) -> tuple[list[float], list[str]]:
    """Return each frame's time in seconds, and defects: frames that the header promises and training would miss."""
    try:
        times = frame_times(data)
    except ValueError as error:
        return [], [str(error)]
    missing = len(times) < medium.num_frames
    return times, [f"{len(times)} frames decode, its header says {medium.num_frames}"] if missing else []


def decoded_by_energon(times: Sequence[float], data: bytes) -> Iterator[str]:
    """Ask Energon's AVDecoder for single frames by number; yield the first that is not right.

    Args:
        times: of all frames, in seconds.
    """
    apart = median([later - earlier for earlier, later in pairwise(times)] or [0.0])
    for index in sorted({i * (len(times) - 1) // (_NUM_ASKED - 1) for i in range(_NUM_ASKED)}):
        try:
            clips = frame_by_energon(data, index)
        except ImportError:  # a package it needs is missing: no loader here uses it
            return
        except Exception as error:  # the decoder is foreign code, and bytes may be any
            what = f"fails: {short(str(error) or type(error).__name__)}"
        else:
            if clips and not abs(clips[0][0] - times[index]) > 1.5 * apart:  # by number, it may be off by one in mkv
                continue
            what = f"gives the one at {clips[0][0]:.2f} s" if clips else "gives none"
        yield (
            f"Energon's AVDecoder, asked for frame {index} (at {times[index]:.2f} s), {what}; all {len(times)} frames"
            " decode from the start, as energon_pack.samples.media.streams.decode_frames does"
        )
        return


def is_read_as_bytes(folder: DatasetFolder) -> bool:
    """Say whether `dataset.yaml` has `decoder: null`: its sample loader gets bytes, and Energon decodes nothing."""
    try:
        value = yaml_value(folder.read(f"{META_FOLDER}/dataset.yaml"))
    except (OSError, ValueError):  # the check `metadata` reports it
        return False
    return isinstance(value, dict) and "decoder" in value and value["decoder"] is None
