"""Images and chosen frames as transformers' processors are given them, in training and where lengths are verified."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from energon_pack.samples.media.probe import Media
from energon_pack.samples.media.video import decode_frames
from energon_pack.templates.families.asking import metadata_of
from energon_pack.templates.template import Sample, Template

Clip = tuple[np.ndarray[Any, Any], dict[str, Any]]  # frames [n, height, width, 3], and what the processor asks of them


def clip(template: Template, data: bytes, video: Media) -> Clip:
    """The frames of a video that the model sees, and what its processor wants to know of them."""
    chosen = template.choose_frames(video)
    frames = template.prepare_frames(decode_frames(data, chosen))
    return np.stack([np.asarray(frame) for frame in frames]), metadata_of(video, chosen)


def media_inputs(template: Template, images: Sequence[Image.Image], clips: Sequence[Clip]) -> dict[str, Any]:
    """The arguments of a processor's call that hold media, and its settings for them; frames are chosen already."""
    settings = template.rules.call_settings(template.spec.processor)
    given: dict[str, Any] = {}
    if images:
        given |= {"images": list(images), "images_kwargs": settings["image"]}
    if clips:
        metadata = [values for _, values in clips]
        given |= {
            "videos": [frames for frames, _ in clips],
            "videos_kwargs": {"do_sample_frames": False, "video_metadata": metadata, **settings["video"]},
        }
    return given


def full_ids(processor: Any, template: Template, sample: Sample, media: Mapping[str, Any]) -> list[int]:
    """The tokens of a sample, as the full processor makes them of its conversation and media.

    Args:
        processor: or a tokenizer, which takes no media.
        media: arguments of its call: see `media_inputs`.

    Raises:
        Exception: whatever its class makes of them.
    """
    spec = template.spec
    text = template.raw_text(sample)
    if text is None:
        text = processor.apply_chat_template(
            template.messages(sample),
            chat_template=spec.chat_template,
            tools=sample.tools,
            tokenize=False,
            add_generation_prompt=False,
            **spec.chat_template_kwargs,
        )
    if not hasattr(processor, "tokenizer"):
        ids: list[int] = processor(text, add_special_tokens=spec.add_special_tokens)["input_ids"]
        return ids
    settings = {"add_special_tokens": spec.add_special_tokens}
    # Tensors, as in training: some processors can't do without, others can't make them of all samples.
    made = processor(text=[text], text_kwargs=settings, return_tensors="pt", **media)["input_ids"]
    return [int(number) for number in made[0]]
