"""How many tokens of an image or a video hold features where a content part says something of it: said a second time.

Written from qwen_vl_utils 0.0.14 (`vision_process.py`) and Qwen2-VL's processor, for the demo's tokens of 28 pixels.
"""

import math
from collections.abc import Mapping

_SIDE = 28
_FPS, _LEAST_FRAMES, _MOST_FRAMES = 2.0, 4, 768
#: of a processor, of qwen_vl_utils for an image, for a frame of a video
_PROCESSOR = (3136, 1003520)
_IMAGE = (4 * _SIDE**2, 16384 * _SIDE**2)
_FRAME = (128 * _SIDE**2, 768 * _SIDE**2)
_TOTAL = 128000 * _SIDE**2 * 0.9
_PIXELS = ("min_pixels", "max_pixels", "resized_height", "resized_width", "total_pixels")
_FRAMES = ("fps", "nframes", "min_frames", "max_frames")


def smart_resize(height: float, width: float, least: float, most: float, side: int = _SIDE) -> tuple[int, int]:
    """Whole tokens of `side` pixels within limits of pixels (`smart_resize`, the same in both)."""
    tall, wide = (max(side, round(edge / side) * side) for edge in (height, width))
    if tall * wide > most:
        factor = math.sqrt(height * width / most)
        tall, wide = (max(side, math.floor(edge / factor / side) * side) for edge in (height, width))
    elif tall * wide < least:
        factor = math.sqrt(least / (height * width))
        tall, wide = (math.ceil(edge * factor / side) * side for edge in (height, width))
    return tall, wide


def num_tokens(kind: str, height: int, width: int, frames: int, rate: float, said: Mapping[str, float]) -> int:
    """Tokens of a medium.

    Args:
        frames: of a video, `rate` a second.
        said: by its content part.
    """
    if kind == "image":
        tall, wide = _resized(height, width, said, *_IMAGE)
        return _tokens_of(tall, wide)
    first = math.ceil(said.get("video_start", 0) * rate)
    last = min(math.floor(said.get("video_end", frames / rate) * rate), frames - 1)
    taken = last - first + 1
    if any(key in said for key in _FRAMES):
        if "nframes" in said:
            taken = round(said["nframes"] / 2) * 2
        else:
            least = math.ceil(said.get("min_frames", _LEAST_FRAMES) / 2) * 2
            most = math.floor(said.get("max_frames", min(_MOST_FRAMES, taken)) / 2) * 2
            wanted = taken / rate * said.get("fps", _FPS)
            taken = math.floor(min(max(wanted, least), most, taken) / 2) * 2
    least_pixels = said.get("min_pixels", _FRAME[0])
    share = max(min(_FRAME[1], said.get("total_pixels", _TOTAL) / taken * 2), int(least_pixels * 1.05))
    tall, wide = _resized(height, width, said, least_pixels, min(said.get("max_pixels", share), share))
    return math.ceil(taken / 2) * _tokens_of(tall, wide)


def _resized(height: int, width: int, said: Mapping[str, float], least: float, most: float) -> tuple[int, int]:
    if "resized_height" in said:
        return smart_resize(said["resized_height"], said["resized_width"], *_IMAGE)
    if any(key in said for key in _PIXELS):
        return smart_resize(height, width, said.get("min_pixels", least), said.get("max_pixels", most))
    return height, width


def _tokens_of(height: int, width: int) -> int:
    tall, wide = smart_resize(height, width, *_PROCESSOR)
    return tall // _SIDE * (wide // _SIDE)
