"""Prepare images, chosen frames and sounds for processors, in training and when lengths are verified."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from energon_pack.samples.media.asked import lists_of_frames
from energon_pack.samples.media.audio import Samples, decode_audio
from energon_pack.samples.media.probe import Media
from energon_pack.samples.media.video import UndecodableError, decode_frames
from energon_pack.templates.chat.jinja import writes_date
from energon_pack.templates.families.asking import metadata_of, sound_inputs
from energon_pack.templates.sample import Sample
from energon_pack.templates.template import Template


class Clip(NamedTuple):
    """The frames of a video that a model sees, and the video's sound if it is heard."""

    frames: np.ndarray[Any, Any]  # [n, height, width, 3]
    metadata: dict[str, Any]  # for the processor
    sound: Samples | None = None


def prepared_media(
    template: Template, media: Sequence[Media], own: Sequence[Image.Image | bytes]
) -> tuple[list[Image.Image], list[Clip], list[Samples], list[str]]:
    """Return the images, clips and sounds of a sample for its processor, and the kind of each placeholder.

    Args:
        media: the media of the sample, in the order of their placeholders.
        own: for each medium an image, or the bytes of a video or a sound.

    Raises:
        ValueError, OSError: a medium can't be decoded.
        Skip: the template skips the sample.
    """
    images: list[Image.Image] = []
    clips: list[Clip] = []
    sounds: list[Samples] = []
    order: list[str] = []
    for medium, places in lists_of_frames(media):
        pixels = own[places]
        order.append(medium.kind)
        if medium.kind == "image":
            images += [template.prepare_image(i, medium.settings) for i in pixels if isinstance(i, Image.Image)]
        elif medium.kind == "audio":
            sounds += [_heard(template, data, medium) for data in pixels if isinstance(data, bytes)]
        else:
            clips.append(clip(template, pixels[0] if isinstance(pixels[0], bytes) else pixels, medium))
    return images, clips, sounds, order


def _heard(template: Template, data: bytes, sound: Media) -> Samples:
    """Return a sound, or the sound of a video, at the rate of the processor.

    Raises:
        UndecodableError: it can't be decoded, or its number of samples is not the measured one.
    """
    samples, wanted = decode_audio(data, template.rules.rate), template.num_heard(sound)
    if len(samples) != wanted:
        raise UndecodableError(f"a sound has {len(samples)} samples, and {wanted} by its header: it is damaged")
    return samples


def clip(template: Template, pixels: Any, video: Media) -> Clip:
    """Return the frames of a video that the model sees, and their metadata for the processor.

    Args:
        pixels: the bytes of the video, or all of its frames.
    """
    chosen = template.choose_frames(video)
    shown = decode_frames(pixels, chosen) if isinstance(pixels, bytes) else [pixels[index] for index in chosen]
    frames = template.prepare_frames(shown, video.settings)
    sound = _heard(template, pixels, video) if video.is_heard else None
    return Clip(np.stack([np.asarray(frame) for frame in frames]), metadata_of(video, chosen), sound)


def media_inputs(
    template: Template,
    images: Sequence[Image.Image],
    clips: Sequence[Clip],
    sounds: Sequence[Samples] = (),
    order: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the media arguments of a processor's call, and its settings for them; the frames are already chosen.

    Args:
        order: the kind of each placeholder; needed if clips have sounds.
    """
    settings = template.rules.call_settings(template.spec.processor)
    given: dict[str, Any] = {}
    if images:
        nests = template.rules.nests_images and len(images) > 1
        given |= {"images": [list(images)] if nests else list(images), "images_kwargs": settings["image"]}
    if clips:
        metadata = [clip.metadata for clip in clips]
        given |= {
            "videos": [clip.frames for clip in clips],
            "videos_kwargs": {"do_sample_frames": False, "video_metadata": metadata, **settings["video"]},
        }
    heard = sound_inputs(order, [clip.sound for clip in clips], sounds)
    return {**given, **heard, "audio_kwargs": settings["audio"]} if heard else given


def full_ids(processor: Any, template: Template, sample: Sample, media: Mapping[str, Any]) -> list[int]:
    """Return the tokens that the full processor makes of a sample's conversation and media.

    Args:
        processor: a processor, or a tokenizer, which takes no media.
        media: the media arguments of its call: see `media_inputs`.

    Raises:
        Exception: any error of the class.
    """
    spec = template.spec
    text = template.raw_text(sample)
    if text is None and writes_date(spec.chat_template):  # transformers writes today's date, and takes no other
        text = template.text(sample)
    if text is None:
        text = processor.apply_chat_template(
            template.messages(sample),
            chat_template=spec.chat_template,
            tools=sample.tools,
            tokenize=False,
            add_generation_prompt=False,
            **{**spec.chat_template_kwargs, **sample.options.chat_template_kwargs},
        )
    if not hasattr(processor, "tokenizer") or (not media and _needs_media(processor)):
        tokenizer = getattr(processor, "tokenizer", processor)
        ids: list[int] = tokenizer(text, add_special_tokens=spec.add_special_tokens)["input_ids"]
        return ids
    settings = {"add_special_tokens": spec.add_special_tokens}
    # Return tensors, as in training: some processors need this, others can't do it for all samples.
    made = processor(text=[text], text_kwargs=settings, return_tensors="pt", **media)["input_ids"]
    return [int(number) for number in made[0]]


def _needs_media(processor: Any) -> bool:
    """Tell whether a processor's call refuses a text without media: training then asks its tokenizer."""
    takes = inspect.signature(processor.__call__).parameters
    return any(name in takes and takes[name].default is inspect.Parameter.empty for name in ("images", "audio"))
