"""Keep measured samples beside a dataset, and measure them again to see whether other versions change a length.

    packing:  drawn samples ──record──► Replay, a file beside the manifest
    loading:  Replay ──compare──► Compared: which length differs, with the template that is built here

Of a sample only the data are kept that its length depends on: the sizes of its media, and the beginnings of its texts
if there is room. Its length is measured in this form, so neither the source nor the packs are needed.
"""

import importlib.metadata
import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from textwrap import shorten
from typing import Any

from energon_pack import __version__
from energon_pack.samples.media.kinds import KINDS
from energon_pack.samples.media.medium import Media
from energon_pack.samples.media.settings import MediumSettings
from energon_pack.samples.options import SampleOptions
from energon_pack.samples.placeholders import split_content
from energon_pack.samples.sample import Message
from energon_pack.samples.skip import Skip
from energon_pack.templates.identity import hash_of
from energon_pack.templates.sample import Rendered, Sample, Tokens, as_seen
from energon_pack.templates.template import Template

MOST_SAMPLES = 1000
_FORMAT = 1
_BYTES = 200_000  # bytes of all samples
_SIZES_BYTES = 60_000  # bytes among these that are reserved for samples without texts
_TEXT_BYTES, _SIZE_BYTES = 1_200, 6_000  # bytes of one sample: with its texts, without
_CUTS = (100, 30)  # characters that a text keeps: the first number with which its sample is small enough
#: seconds that measuring again may take; a processor may be far slower here than at packing
_MOST_SECONDS = 1.8
_MOST_MEDIA = 32  # media of a sample without its texts
_OF_SOUND = ("num_samples", "rate")


def versions() -> dict[str, str]:
    """Return the versions of the packages whose code decides lengths."""
    found = {name: importlib.metadata.version(name) for name in ("transformers", "tokenizers")}
    return {**found, "energon_pack": __version__}


@dataclass(frozen=True)
class Measured:
    """A kept sample and its measured length."""

    sample: Sample
    has_text: bool  # whether its own texts are kept
    token_len: int
    ids: str  # a hash

    def __str__(self) -> str:
        parts = [", ".join(map(_named, self.sample.media))] if self.sample.media else []
        if self.has_text:
            texts = (_text(message["content"]) for message in self.sample.messages)
            parts.append(repr(shorten(" … ".join(filter(None, texts)), 80, placeholder=" …")))
        return f"a sample of {' and '.join(parts)}"


@dataclass(frozen=True)
class Compared:
    """The result of measuring a replay again."""

    num_kept: int = 0
    num_measured: int = 0
    difference: str = ""  # the first length that differs; empty: none
    other_ids: str = ""  # the first sample with equally many, but different tokens

    def __add__(self, other: "Compared") -> "Compared":
        return Compared(
            self.num_kept + other.num_kept,
            self.num_measured + other.num_measured,
            self.difference or other.difference,
            self.other_ids or other.other_ids,
        )


@dataclass(frozen=True)
class Replay:
    """Kept samples of a dataset, the most telling first, and the versions that measured them."""

    fingerprint: str
    versions: Mapping[str, str]
    samples: Sequence[Measured] = field(repr=False)

    def compare(self, template: Template, share: int = 1) -> Compared:
        """Measure samples again, the most telling first.

        Args:
            share: how many replays are compared: each gets an equal part of the samples and of the time.
        """
        samples = self.samples[: MOST_SAMPLES // share]
        found = _measure(template, [measured.sample for measured in samples], _MOST_SECONDS / share)
        difference = other_ids = ""
        for measured, here in zip(samples, found, strict=False):
            if isinstance(here, Skip):
                difference = difference or f"{measured} is refused here ({here}), {measured.token_len:,} tokens"
            elif here[0] != measured.token_len:
                difference = difference or f"{measured} has {here[0]:,} tokens here, {measured.token_len:,}"
            elif here[1] != measured.ids:
                other_ids = other_ids or str(measured)
        return Compared(len(samples), len(found), difference and f"{difference} when it was packed", other_ids)

    def to_bytes(self) -> bytes:
        """Return the replay as JSON, with one line per sample."""
        head = json.dumps({"format": _FORMAT, "fingerprint": self.fingerprint, "versions": self.versions})
        lines = ",\n".join(map(_to_json, self.samples))
        return f'{head[:-1]}, "samples": [\n{lines}\n]}}\n'.encode()

    @staticmethod
    def from_bytes(data: bytes) -> "Replay":
        """Read a replay that `to_bytes` wrote.

        Raises:
            ValueError: it was cut or damaged, or has another format.
        """
        try:
            value = json.loads(data)
            if value["format"] != _FORMAT:
                raise ValueError(f"format {value['format']}, not {_FORMAT}")
            samples = [_from_json(item) for item in value["samples"]]
            return Replay(str(value["fingerprint"]), dict(value["versions"]), samples)
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from None


def record(template: Template, drawn: Iterable[Sample]) -> Replay:
    """Make the replay of samples, the most telling first; samples that can't be kept are left out.

    It depends only on the samples and the template.
    """
    kept: dict[str, Measured] = {}  # by their written form, so each is kept once
    room = _BYTES
    for sample in drawn:
        for smaller, has_text in _smaller(sample):
            text = _content(smaller, has_text)
            if text in kept:
                break
            if len(text) > (min(room - _SIZES_BYTES, _TEXT_BYTES) if has_text else min(room, _SIZE_BYTES)):
                continue
            [found] = _measure(template, [smaller])
            if not isinstance(found, Skip):
                kept[text] = Measured(smaller, has_text, *found)
                room -= len(text)
                break
    return Replay(template.fingerprint, versions(), list(kept.values()))


def _measure(template: Template, samples: Sequence[Sample], seconds: float = math.inf) -> list[tuple[int, str] | Skip]:
    """Return for each sample the number of its tokens and a hash of their ids, or the reason why it is refused.

    Args:
        seconds: CPU time of this thread after which no further sample is begun.
    """
    rendered: list[Rendered | Skip] = []
    end = time.thread_time() + seconds
    for sample in samples:
        try:
            rendered.append(template.render(sample))
        except Skip as skip:
            rendered.append(skip)
        if time.thread_time() > end:
            break
    tokens = iter(template.tokenize([item for item in rendered if isinstance(item, Rendered)]))
    return [item if isinstance(item, Skip) else _length(next(tokens)) for item in rendered]


def _length(tokens: Tokens) -> tuple[int, str]:
    return len(tokens.ids), hash_of(tokens.ids)


# ------------------------------------------------------------------------------------------------- what is kept


def _smaller(sample: Sample) -> Iterable[tuple[Sample, bool]]:
    """Yield the sample with the beginnings of its texts, then without texts; and whether it has texts."""
    sample = as_seen(sample)
    messages = split_content(sample.messages, [media.kind for media in sample.media])
    for num_characters in _CUTS:
        shorter = [{key: _cut(value, num_characters) for key, value in message.items()} for message in messages]
        yield Sample(shorter, sample.media, sample.tools, sample.options), True
    if sample.media:
        yield _of_media(sample.media[:_MOST_MEDIA]), False


def _cut(content: Any, num_characters: int) -> Any:
    """Return a field of a message with the beginning of its text; tool calls stay unchanged."""
    if isinstance(content, str):
        return content[:num_characters]
    if isinstance(content, list):
        return [
            {**part, "text": part["text"][:num_characters]}
            if isinstance(part, dict) and isinstance(part.get("text"), str)
            else part
            for part in content
        ]
    return content


def _of_media(media: list[Media]) -> Sample:
    """Return the shortest conversation with these media."""
    parts: list[Message] = [{"type": item.kind} for item in media]
    parts.append({"type": "text", "text": "?"})
    return Sample([{"role": "user", "content": parts}, {"role": "assistant", "content": "."}], media)


def _content(sample: Sample, has_text: bool) -> str:
    """Return the JSON that identifies a sample."""
    value: dict[str, Any] = {"media": [_numbers(item) for item in sample.media]}
    if has_text:
        value |= {"messages": sample.messages, **({"tools": sample.tools} if sample.tools else {})}
        if variables := dict(sample.options.chat_template_kwargs):
            value["chat_template_kwargs"] = variables
        if labels := dict(sample.options.labels):
            value["label_settings"] = labels
    return json.dumps(value, separators=(",", ":"))


def _numbers(media: Media) -> list[Any]:
    values = [media.kind, *(getattr(media, name) for name in KINDS[media.kind].fields)]
    said = {} if media.settings is None else {k: v for k, v in asdict(media.settings).items() if v is not None}
    said |= {name: getattr(media, name) for name in _OF_SOUND} if media.is_heard else {}
    return [*values, *([said] if said else [])]


def _to_json(measured: Measured) -> str:
    found = json.dumps({"token_len": measured.token_len, "ids": measured.ids}, separators=(",", ":"))
    return f"{_content(measured.sample, measured.has_text)[:-1]},{found[1:]}"


def _from_json(value: dict[str, Any]) -> Measured:
    media = [_media(numbers) for numbers in value["media"]]
    has_text = "messages" in value
    options = SampleOptions(
        chat_template_kwargs=value.get("chat_template_kwargs", {}), labels=value.get("label_settings", {})
    )
    sample = Sample(value["messages"], media, value.get("tools"), options) if has_text else _of_media(media)
    return Measured(sample, has_text, int(value["token_len"]), str(value["ids"]))


def _media(numbers: list[Any]) -> Media:
    said = dict(numbers[-1]) if isinstance(numbers[-1], dict) else {}
    sound = {name: said.pop(name) for name in _OF_SOUND if name in said}
    if numbers[0] not in KINDS:
        raise ValueError(f"a medium of the kind {numbers[0]!r}: the package that adds this kind is not installed")
    kind, *told = (number for number in numbers if not isinstance(number, dict))
    values: dict[str, Any] = dict(zip(KINDS[kind].fields, told, strict=False))
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    return Media(kind, **values, settings=MediumSettings(**said) if said else None, **sound)


def _named(media: Media) -> str:
    if media.num_samples or not media.width:
        return str(media)
    size = f"{KINDS[media.kind].noun} of {media.width}×{media.height} pixels"
    return f"{size} and {media.num_frames} frames, {media.fps:g} a second" if media.num_frames else size


def _text(content: Any) -> str:
    if isinstance(content, list):
        return " ".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return str(content or "")
