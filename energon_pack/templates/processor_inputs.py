"""Call a full processor with a sample's conversation and media, as its users do."""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from energon_pack.run.packages import patched
from energon_pack.samples.media.kinds import AUDIO, IMAGE
from energon_pack.templates.full_processor import has_media_processor
from energon_pack.templates.sample import Rendered, Sample
from energon_pack.templates.template import Template


def full_processor_ids(processor: Any, template: Template, sample: Sample, media: Mapping[str, Any]) -> list[int]:
    """Return the token ids that the full processor makes of a sample's conversation and media.

    Args:
        processor: a processor, or a tokenizer, which takes no media.
        media: the media arguments of its call, such as `images`: see `samples.media.prepared.processor_arguments`.
    """
    spec, tokenizer = template.spec, getattr(processor, "tokenizer", processor)
    adds = {"add_special_tokens": spec.add_special_tokens}
    text = template.raw_text(sample)
    if text is None:
        text = _chat_text(processor, template, sample)
        if spec.add_special_tokens == spec.own_special_tokens and not _is_only_tokenizer(processor, template):
            adds = _special_tokens_argument(processor, tokenizer, text)
    if tokenizer is processor or (not media and _needs_media(processor)):
        ids: list[int] = tokenizer(text, **adds)["input_ids"]
        return ids
    # Return tensors, as in training: some processors need this, others can't do it for all samples.
    ids_of_batch = processor(text=[text], text_kwargs=adds, return_tensors="pt", **media)["input_ids"]
    return [int(number) for number in ids_of_batch[0]]


def remove_final_end_token(template: Template, rendered: Rendered, token_ids: list[int]) -> list[int]:
    """Return a sample's ids without the token of `labels.final_end`, the last of its kind: no processor writes it."""
    if not rendered.final_end:
        return token_ids
    last = len(token_ids) - 1 - token_ids[::-1].index(template.token_id(rendered.final_end) or 0)
    return [*token_ids[:last], *token_ids[last + 1 :]]


def _chat_text(processor: Any, template: Template, sample: Sample) -> str:
    """Return the text that the processor writes for a conversation, by `model.chat_template` only if that is set."""
    spec, tokenizer = template.spec, getattr(processor, "tokenizer", processor)
    is_told = spec.sets_template or _is_only_tokenizer(processor, template)
    writes = processor if is_told or getattr(processor, "chat_template", None) else tokenizer
    given_template = {"chat_template": (sample.tools and spec.tool_template) or spec.chat_template} if is_told else {}
    with _with_today(spec.date):
        text: str = writes.apply_chat_template(
            template.messages(sample),
            tools=sample.tools,
            tokenize=False,
            add_generation_prompt=False,
            **given_template,
            **{**spec.chat_template_kwargs, **sample.options.chat_template_kwargs},
        )
    return text


def _is_only_tokenizer(processor: Any, template: Template) -> bool:
    """Say whether this is only the tokenizer of a processor that can't be loaded, which does not know all its files."""
    return not hasattr(processor, "tokenizer") and has_media_processor(Path(template.spec.processor.folder))


def _special_tokens_argument(processor: Any, tokenizer: Any, text: str) -> dict[str, bool]:
    """Return the `add_special_tokens` argument of `apply_chat_template(tokenize=True)`; empty: it gives none."""
    begins = bool(tokenizer.bos_token and text.startswith(tokenizer.bos_token))
    return {"add_special_tokens": False} if tokenizer is processor or begins else {}


@contextmanager
def _with_today(date: str) -> Iterator[None]:
    """In this context, transformers' chat templates take this ISO date for today."""
    from transformers.utils import chat_template_utils

    class Fixed(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> "Fixed":
            return cls.fromisoformat(date)

    with patched(chat_template_utils, datetime=Fixed):
        yield


def _needs_media(processor: Any) -> bool:
    """Say whether the processor's call refuses a text without media; training then calls only its tokenizer."""
    takes = inspect.signature(processor.__call__).parameters
    return any(
        name in takes and takes[name].default is inspect.Parameter.empty for name in (IMAGE.argument, AUDIO.argument)
    )
