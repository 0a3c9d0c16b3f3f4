"""Images and chosen frames as transformers' processors are given them, in training and where lengths are verified."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from energon_pack.samples.media.probe import Media
from energon_pack.samples.media.video import decode_frames
from energon_pack.templates.template import Template

Clip = tuple[np.ndarray[Any, Any], dict[str, Any]]  # frames [n, height, width, 3], and what the processor asks of them


def clip(template: Template, data: bytes, video: Media) -> Clip:
    """The frames of a video that the model sees, and what its processor wants to know of them."""
    chosen = template.choose_frames(video)
    frames = template.prepare_frames(decode_frames(data, chosen))
    metadata = {
        "total_num_frames": video.num_frames,
        "fps": video.fps,
        "frames_indices": chosen,
        "duration": video.num_frames / video.fps,
    }
    return np.stack([np.asarray(frame) for frame in frames]), metadata


def media_inputs(template: Template, images: Sequence[Image.Image], clips: Sequence[Clip]) -> dict[str, Any]:
    """The arguments of a processor's call that hold media, and its settings for them; frames are chosen already."""
    processor = template.spec.processor
    given: dict[str, Any] = {}
    if images:
        given |= {"images": list(images), "images_kwargs": _only(processor.image, ("do_resize",))}
    if clips:
        own = _only(processor.video, ("do_resize", "size", "cap_pixels_per_frame"))
        if template.rules.size_of_frames:
            own["size"] = template.rules.size_of_frames
        metadata = [values for _, values in clips]
        given |= {
            "videos": [frames for frames, _ in clips],
            "videos_kwargs": {"do_sample_frames": False, "video_metadata": metadata, **own},
        }
    return given


def _only(settings: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: settings[name] for name in names if settings.get(name) is not None}
