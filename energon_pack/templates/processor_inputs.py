"""Prepare images, chosen frames and other media for processors, in training and when lengths are verified."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from PIL.Image import Image

from energon_pack.samples.media.kinds import AUDIO, IMAGE, KINDS, VIDEO
from energon_pack.samples.media.medium import Media
from energon_pack.samples.media.streams import UndecodableError
from energon_pack.samples.media.video import decode_frames
from energon_pack.samples.tokens import SeenMedium
from energon_pack.templates.families.arguments import Clip, Prepared, media_arguments, metadata
from energon_pack.templates.families.asking import changed
from energon_pack.templates.folder import has_media
from energon_pack.templates.sample import Sample
from energon_pack.templates.template import Template


def prepared_media(template: Template, media: Sequence[SeenMedium], own: Sequence[Any]) -> Prepared:
    """Return the media of a sample for its processor.

    Args:
        media: the media of the sample, in the order of their placeholders.
        own: for each medium an image, or the bytes of another medium; for a list of frames, each image.

    Raises:
        ValueError, OSError: a medium can't be decoded, or is not what it was when it was packed.
    """
    ends = [*accumulate(max(1, medium.num_images) for medium in media)]
    each = zip(media, [0, *ends], ends, strict=False)
    return Prepared(
        [medium.kind for medium in media], [_prepared(template, m, own[start:end]) for m, start, end in each]
    )


def _prepared(template: Template, medium: SeenMedium, own: Sequence[Any]) -> Any:
    rate = template.rules.rate
    sound = Media(AUDIO.kind, num_samples=medium.num_samples, rate=rate)
    if medium.kind == IMAGE.kind:
        return _pixels(template, medium, own)[0]
    if medium.kind != VIDEO.kind:
        known = replace(sound, kind=medium.kind, width=medium.width, height=medium.height)
        return KINDS[medium.kind].decoded(own[0], known, rate)
    of_list = [own[index] for index in medium.frames] if medium.num_images else None
    frames = _pixels(template, medium, of_list or decode_frames(own[0], medium.frames))
    heard = AUDIO.decoded(own[0], sound, rate) if medium.num_samples else None
    total = int(medium.num_in_source) if medium.num_in_source == int(medium.num_in_source) else medium.num_in_source
    return Clip(np.stack([np.asarray(frame) for frame in frames]), metadata(total, medium.fps, medium.frames), heard)


def _pixels(template: Template, medium: SeenMedium, images: Sequence[Any]) -> list[Image]:
    """Return images, or frames, after the medium's steps."""
    shown = [template.shown(image, medium.kind) for image in images]
    if other := next((image.size for image in shown if image.size != (medium.width, medium.height)), None):
        wanted = f"{medium.width}×{medium.height}"
        raise UndecodableError(f"its picture is {other[0]}×{other[1]}, and {wanted} by its header when it was measured")
    return [template.stepped(image, medium.steps) for image in shown]


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
    spec, tokenizer = template.spec, getattr(processor, "tokenizer", processor)
    adds = {"add_special_tokens": spec.add_special_tokens}
    text = template.raw_text(sample)
    if text is None:
        text = _chat_text(processor, template, sample)
        if spec.add_special_tokens == spec.own_special_tokens and not _stands_in(processor, template):
            adds = _special_tokens(processor, tokenizer, text)
    if tokenizer is processor or (not media and _needs_media(processor)):
        ids: list[int] = tokenizer(text, **adds)["input_ids"]
        return ids
    # Return tensors, as in training: some processors need this, others can't do it for all samples.
    made = processor(text=[text], text_kwargs=adds, return_tensors="pt", **media)["input_ids"]
    return [int(number) for number in made[0]]


def _chat_text(processor: Any, template: Template, sample: Sample) -> str:
    """Return the text that a processor writes for a conversation: it is given a template only by the setting."""
    spec, tokenizer = template.spec, getattr(processor, "tokenizer", processor)
    is_told = spec.sets_template or _stands_in(processor, template)
    writes = processor if is_told or getattr(processor, "chat_template", None) else tokenizer
    own = {"chat_template": (sample.tools and spec.tool_template) or spec.chat_template} if is_told else {}
    with _on_date(spec.date):
        text: str = writes.apply_chat_template(
            template.messages(sample),
            tools=sample.tools,
            tokenize=False,
            add_generation_prompt=False,
            **own,
            **{**spec.chat_template_kwargs, **sample.options.chat_template_kwargs},
        )
    return text


def _stands_in(processor: Any, template: Template) -> bool:
    """Say whether a tokenizer stands in for a processor that can't be loaded here: it knows not all of its files."""
    return not hasattr(processor, "tokenizer") and has_media(Path(template.spec.processor.folder))


def _special_tokens(processor: Any, tokenizer: Any, text: str) -> dict[str, bool]:
    """Return the argument that `apply_chat_template(tokenize=True)` would give: a tokenizer adds no special tokens, a
    processor adds its own unless the text begins with one.
    """
    begins = bool(tokenizer.bos_token and text.startswith(tokenizer.bos_token))
    return {"add_special_tokens": False} if tokenizer is processor or begins else {}


@contextmanager
def _on_date(date: str) -> Iterator[None]:
    """In this context, transformers' templates write a date as today's."""
    from transformers.utils import chat_template_utils

    class Fixed(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> "Fixed":
            return cls.fromisoformat(date)

    with changed(chat_template_utils, datetime=Fixed):
        yield


def _needs_media(processor: Any) -> bool:
    """Tell whether a processor's call refuses a text without media: training then asks its tokenizer."""
    takes = inspect.signature(processor.__call__).parameters
    return any(
        name in takes and takes[name].default is inspect.Parameter.empty for name in (IMAGE.argument, AUDIO.argument)
    )
