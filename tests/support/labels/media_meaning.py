"""How many tokens of an image or a video hold features where a content part says something of it: said a second time.

Written from qwen_vl_utils 0.0.14 (`vision_process.py`) and Qwen2-VL's processor, for the demo's tokens of 28 pixels.
"""

import math
from typing import Any

#: pixels of the side of a token
_SIDE = 28


def smart_resize(width: float, height: float, least: float, most: float, side: int = _SIDE) -> tuple[int, int]:
    """Whole tokens of `side` pixels within limits of pixels (`smart_resize`, the same in both)."""
    across, down = (max(side, round(edge / side) * side) for edge in (width, height))
    if across * down > most:
        factor = math.sqrt(height * width / most)
        across, down = (max(side, math.floor(edge / factor / side) * side) for edge in (width, height))
    elif across * down < least:
        factor = math.sqrt(least / (height * width))
        across, down = (math.ceil(edge * factor / side) * side for edge in (width, height))
    return across, down


def size_by(
    settings: dict[str, Any], size: tuple[int, int], factor: int, num_frames: int, always: bool
) -> tuple[int, int]:
    """What `fetch_image` or `fetch_video` make of a size; as it is where nothing is said of pixels, unless `always`."""
    area = factor * factor
    if not always and not settings.keys() & {"min_pixels", "max_pixels", "resized_width", "total_pixels"}:
        return size
    if "resized_width" in settings:
        return smart_resize(settings["resized_width"], settings["resized_height"], 4 * area, 16384 * area, factor)
    if not num_frames:
        least, most = settings.get("min_pixels", 4 * area), settings.get("max_pixels", 16384 * area)
        return smart_resize(*size, least, most, factor)
    least = settings.get("min_pixels", 128 * area)
    in_all = settings.get("total_pixels", 128000 * area * 0.9)
    most = max(min(768 * area, in_all / num_frames * 2), int(least * 1.05))
    return smart_resize(*size, least, min(settings.get("max_pixels", most), most), factor)


def frames_by(settings: dict[str, Any], total: int, fps: float) -> tuple[list[int], int]:
    """Which frames, and of how many: `calculate_video_frame_range` and `smart_nframes`."""
    start = math.ceil(settings.get("video_start", 0) * fps)
    end = min(math.floor(settings.get("video_end", total / fps) * fps), total - 1)
    num = end - start + 1
    if "nframes" in settings:
        wanted = round(settings["nframes"] / 2) * 2
    else:
        least, most = (
            math.ceil(settings.get("min_frames", 4) / 2) * 2,
            settings.get("max_frames", min(768, num)) // 2 * 2,
        )
        wanted = math.floor(min(max(num / fps * settings.get("fps", 2.0), least), most, num) / 2) * 2
    return [round(start + i * (end - start) / (wanted - 1)) for i in range(wanted)], num


def num_tokens(kind: str, height: int, width: int, total: int, fps: float, settings: dict[str, Any]) -> int:
    """Tokens of a medium of which its content part says these settings, if it is a video of so many frames."""
    num = 0
    if kind == "video":
        chosen, num = frames_by(settings, total, fps)
        num = len(chosen) if settings.keys() & {"fps", "nframes", "min_frames", "max_frames"} else num
    size = size_by(settings, (width, height), _SIDE, num, always=False)
    across, down = smart_resize(*size, 3136, 1003520)
    return max(1, math.ceil(num / 2)) * (across // _SIDE) * (down // _SIDE)
