"""Prepare images, chosen frames and other media for processors, in training and when lengths are verified."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from energon_pack.samples.media.asked import lists_of_frames
from energon_pack.samples.media.kinds import AUDIO, IMAGE, KINDS, VIDEO
from energon_pack.samples.media.medium import Media
from energon_pack.samples.media.streams import UndecodableError
from energon_pack.samples.media.video import decode_frames
from energon_pack.templates.chat.jinja import writes_date
from energon_pack.templates.families.arguments import Clip, Prepared, media_arguments, metadata_of
from energon_pack.templates.sample import Sample
from energon_pack.templates.template import Template


def prepared_media(template: Template, media: Sequence[Media], own: Sequence[Any]) -> Prepared:
    """Return the media of a sample for its processor.

    Args:
        media: the media of the sample, in the order of their placeholders.
        own: for each medium an image, or the bytes of another medium.

    Raises:
        ValueError, OSError: a medium can't be decoded.
        Skip: the template skips the sample.
    """
    seen = [*lists_of_frames(media)]
    values = [_prepared(template, medium, own[places]) for medium, places in seen]
    return Prepared([medium.kind for medium, _ in seen], values)


def _prepared(template: Template, medium: Media, own: Sequence[Any]) -> Any:
    """Prepare one medium; a list of frames has several images."""
    if medium.kind == IMAGE.kind:
        return template.prepare_image(own[0], medium.settings)
    if medium.kind == VIDEO.kind:
        return clip(template, own[0] if isinstance(own[0], bytes) else own, medium)
    return KINDS[medium.kind].decoded(own[0], medium, template.rules.rate)


def clip(template: Template, pixels: Any, video: Media) -> Clip:
    """Return the frames of a video that the model sees, and their metadata for the processor.

    Args:
        pixels: the bytes of the video, or all of its frames.
    """
    chosen = template.choose_frames(video)
    shown = decode_frames(pixels, chosen) if isinstance(pixels, bytes) else [pixels[index] for index in chosen]
    if isinstance(pixels, bytes) and shown[0].size != (video.width, video.height):
        raise UndecodableError("its frames are {}×{}".format(*shown[0].size) + f", its header says {video}")
    frames = template.prepare_frames(shown, video.settings)
    sound = AUDIO.decoded(pixels, video, template.rules.rate) if video.is_heard else None
    return Clip(np.stack([np.asarray(frame) for frame in frames]), metadata_of(video, chosen), sound)


def media_inputs(template: Template, media: Prepared) -> dict[str, Any]:
    """Return the media arguments of a processor's call, and its settings for them; the frames are already chosen."""
    settings = template.rules.call_settings(template.spec.processor)
    return media_arguments(media, settings, template.rules.nests_images)


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
    return any(
        name in takes and takes[name].default is inspect.Parameter.empty for name in (IMAGE.argument, AUDIO.argument)
    )
