"""The view of a pack: its members, their turns and media, and spans of tokens, trained or not.

`spans_of` cuts the tokens of a member into spans:

    MemberTokens ──tokenizer──► Span, Span, …   all of its tokens, once each, as they are trained

One span holds all tokens from the first to the last that hold features of a medium.
"""

import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from energon_pack.run.bounded_memory import LruCache
from energon_pack.samples.media.image import opened_image, to_rgb
from energon_pack.samples.media.kinds import AUDIO, KINDS, VIDEO
from energon_pack.samples.media.streams import decode_frames
from energon_pack.samples.member import MediumInput, MemberTokens
from energon_pack.samples.sample import Message

if TYPE_CHECKING:
    from energon_pack.templates.template import Template


@dataclass(frozen=True)
class Span:
    """Neighbouring tokens of one kind (text, special, a medium) and one weight in the loss."""

    text: str  # the text they spell; for a medium a short description, as `image 448×336`
    kind: str  # text, special, image or video
    num_tokens: int
    weight: float  # of each token in the loss, as its turn says; 0: it is not trained on

    @property
    def is_trained(self) -> bool:
        return self.weight > 0

    @property
    def as_text(self) -> str:
        """Return the text; of a medium its description and its tokens, in brackets."""
        return self.text if self.kind in ("text", "special") else f"[{self.text}, {self.num_tokens:,} tokens]"


def weight_text(weight: float) -> str:
    """Write a weight in the loss as it is shown: `×0.5`."""
    return f"×{weight:.6g}"


@dataclass(frozen=True)
class Turn:
    """A message of a conversation, as text."""

    role: str
    text: str  # with its placeholders


def turns_of(messages: Iterable[Message]) -> list[Turn]:
    """Turn messages into text: the content of each, then its other keys (tool calls, reasoning) as JSON."""
    turns = []
    for message in messages:
        content = message.get("content", "")
        parts = [content] if isinstance(content, str) else content
        text = "".join(part if isinstance(part, str) else part.get("text", f"<{part['type']}>") for part in parts)
        rest = {key: item for key, item in message.items() if key not in ("role", "content") and item is not None}
        lines = [text] * bool(text) + [f"{key}: {json.dumps(item, ensure_ascii=False)}" for key, item in rest.items()]
        turns.append(Turn(str(message.get("role", "")), "\n".join(lines)))
    return turns


@dataclass(frozen=True)
class MediumView:
    """What is shown of an image, video or sound of a member."""

    kind: str
    name: str  # name of its part or file
    size: str = ""  # as the class of its kind says it: `640×480`; empty: it can't be read, see `problem`
    num_frames: int = 0  # of a video
    num_bytes: int = 0
    num_tokens: int | None = None  # all tokens that stand for it; None: not known without the model's tokenizer
    seen: str | None = None  # how `media.*` changes it; None: unchanged, or not known
    data: bytes | None = None  # a small WebP picture of it; None: not wanted, or it could not be made
    problem: str | None = None  # why it can't be read or shown

    def __str__(self) -> str:
        frames = f", {self.num_frames:,} frames" if self.num_frames else ""
        return f"{self.kind} {self.size}{frames}" if self.size else self.kind

    @property
    def description_as_seen(self) -> str:
        """Describe the medium, its size as the model sees it, and its tokens, in one line."""
        seen = f" → {self.seen}" if self.seen else ""
        return f"{self}{seen}" + (f", {self.num_tokens:,} tokens" if self.num_tokens else "")


@dataclass(frozen=True)
class MemberView:
    """What is shown of a sample in a pack, or of a sample of a source: its counts, turns, media and tokens."""

    sample_id: str
    media_type: str
    token_len: int | None  # None: it was not measured, see `refused`
    num_supervised: int | None
    num_visual_tokens: int | None
    turns: list[Turn] = field(default_factory=list)
    media: list[MediumView] = field(default_factory=list)
    spans: list[Span] | None = None  # None: without the model's tokenizer
    refused: str | None = None  # why it would be in no pack: reason and detail; None: it would be in one
    weight: float = 1.0  # of the whole sample
    shared_len: int = 0  # how many first tokens it shares with the member before it in the pack
    num_shared_visual: int = 0  # how many of these hold visual features


@dataclass(frozen=True)
class PackPlace:
    """Where a pack is in its dataset: its number, and its shard."""

    number: int  # its number in the order of the plan
    num_packs: int
    shard: str
    max_token_len: int | None = None


@dataclass(frozen=True)
class PackView:
    """What is shown of a pack: its place, and its members."""

    key: str
    place: PackPlace
    media_type: str
    members: list[MemberView]
    holds_text: bool = True  # False: `output.messages=false`

    @property
    def token_len(self) -> int:
        return sum((member.token_len or 0) - member.shared_len for member in self.members)


_THUMBNAIL_PIXELS = 160  # pixels
_WEBP_QUALITY = 60
#: modes of images that Pillow makes smaller as they are; others are converted to RGB first
_MODES_MADE_SMALL = frozenset(("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr"))
#: hash and kind of a medium → its picture: a sample is on the sheet for several reasons, and in a pack
_pictures: LruCache[tuple[bytes, str], bytes] = LruCache(256)


def make_webp_thumbnail(data: bytes, medium_kind: str) -> bytes:
    """Return an image, or the first frame of a video, as WebP of a few KB; each is decoded once.

    Raises:
        ValueError: it can't be decoded, or PyAV is missing; the message says which.
    """
    key = hashlib.sha256(data).digest(), medium_kind
    return _pictures.get(key) or _pictures.put(key, _uncached_thumbnail(data, medium_kind))


def _uncached_thumbnail(data: bytes, kind: str) -> bytes:
    try:
        image = decode_frames(data, [0])[0] if kind == VIDEO.kind else _small_image(data)
        image.thumbnail((_THUMBNAIL_PIXELS, _THUMBNAIL_PIXELS))
        written = io.BytesIO()
        image.save(written, "WEBP", quality=_WEBP_QUALITY, method=0)  # 0: the quickest
    except ImportError:
        raise ValueError("no picture: that needs PyAV (pip install 'energon-pack[video]')") from None
    except Exception as error:  # damaged bytes make Pillow's plugins and FFmpeg raise anything
        raise ValueError(f"it does not decode: {str(error) or type(error).__name__}") from None
    return written.getvalue()


def _small_image(data: bytes) -> Image.Image:
    """Decode an image to about twice the size of its thumbnail: upright, RGB."""
    image, size = opened_image(io.BytesIO(data)), (2 * _THUMBNAIL_PIXELS, 2 * _THUMBNAIL_PIXELS)
    image.draft("RGB", size)  # a large JPEG is not decoded in full
    image.load()
    if image.mode in _MODES_MADE_SMALL:
        image.thumbnail(size)  # before it is copied and converted
    return to_rgb(image)


@dataclass(frozen=True)
class TokenDecoder:
    """Turns token ids into text: a tokenizer, and the ids that stand for media features."""

    tokenizer: Any  # of the package `tokenizers`
    feature_ids: Mapping[str, int]  # by kind of media: of the tokens that hold features

    def text(self, ids: Sequence[int], start: int, end: int) -> str:
        """Return the text of `ids[start:end]`; whether it begins with a space depends on the id before."""
        first = max(0, start - 1)
        before, all_of_it = (self.tokenizer.decode(ids[first:last], skip_special_tokens=False) for last in (start, end))
        return str(all_of_it).removeprefix(before)


def spans_of(tokens: MemberTokens, decoder: TokenDecoder, media_descriptions: Sequence[str]) -> list[Span]:
    """Split the tokens of a member into spans: text by weight, special tokens, and one span for each medium.

    `media_descriptions`: a short description of each medium, which is the text of its span.
    """
    ids = tokens.ids.tolist()
    medium_of: list[int | None] = [None] * len(ids)
    for index, place in enumerate(media_places(tokens, decoder.feature_ids)):
        medium_of[place] = [index] * (place.stop - place.start)
    added = decoder.tokenizer.get_added_tokens_decoder()
    special = [
        own is None and token in added and added[token].special and token
        for own, token in zip(medium_of, ids, strict=True)
    ]
    alike = [*zip(medium_of, special, tokens.token_weights, strict=True)]
    spans = []
    for (number, token, weight), group in groupby(range(len(ids)), key=alike.__getitem__):
        places = [*group]
        if number is None:
            text = decoder.text(ids, places[0], places[-1] + 1)
            spans.append(Span(text, "text" if token is False else "special", len(places), weight))
        else:
            spans.append(Span(media_descriptions[number], tokens.media[number].kind, len(places), weight))
    return spans


def media_places(tokens: MemberTokens, feature_ids: Mapping[str, int]) -> Iterator[slice]:
    """Yield for each medium the range of its tokens, from the first to the last that hold its features."""
    done = 0
    for medium in tokens.media:
        held = np.flatnonzero(tokens.ids[done:] == feature_ids.get(medium.kind))[: medium.num_features] + done
        start, done = (int(held[0]), int(held[-1]) + 1) if len(held) else (done, done)
        while medium.kind != AUDIO.kind and medium.num_samples and done < len(tokens):  # the last of its sound
            if tokens.ids[done] != feature_ids.get(AUDIO.kind):
                break
            done += 1
        yield slice(start, done)


def token_decoder_of(template: "Template") -> TokenDecoder:
    """Return the vocabulary of a chat template's tokenizer."""
    return TokenDecoder(template.tokenizer, template.feature_ids)


def add_tokens_to_view(view: MemberView, tokens: MemberTokens, decoder: TokenDecoder) -> MemberView:
    """Add the tokens of a member to its view: spans, exact counts, and the tokens of each medium."""
    media = [*_media_as_seen(view.media, tokens.media)]
    visual = [number for kind, number in decoder.feature_ids.items() if KINDS[kind].is_visual]
    return replace(
        view,
        token_len=len(tokens),
        num_supervised=tokens.num_supervised,
        num_visual_tokens=int(np.isin(tokens.ids, visual).sum()),
        media=[
            replace(medium, num_tokens=place.stop - place.start)
            for medium, place in zip(media, media_places(tokens, decoder.feature_ids), strict=True)
        ],
        spans=spans_of(tokens, decoder, [f"{medium.kind} {medium.size}" for medium in media]),
        weight=tokens.factor,
    )


def _media_as_seen(media: Sequence[MediumView], seen: Sequence[MediumInput]) -> Iterator[MediumView]:
    """Yield the media as a model sees them: a list of frames is one video, with the picture of its first frame.

    Raises:
        ValueError: the tokens name another number of media.
    """
    parts = iter(media)
    for medium in seen:
        its_parts = [*islice(parts, medium.num_images or 1)]
        if len(its_parts) != (medium.num_images or 1):
            raise ValueError("its tokens are of more media than it has")
        if medium.num_images:
            num_bytes = sum(frame.num_bytes or 0 for frame in its_parts)
            its_parts[0] = replace(its_parts[0], kind=VIDEO.kind, num_frames=medium.num_images, num_bytes=num_bytes)
        yield replace(its_parts[0], seen=_changed_size_text(medium))
    if next(parts, None) is not None:
        raise ValueError("its tokens are of fewer media than it has")


def _changed_size_text(medium: MediumInput) -> str | None:
    """Return, as text, the size and frames of a medium after `media.*` changed it; None: it is unchanged."""
    sizes = [f"{step.width}×{step.height}" for step in medium.steps[-1:]]
    frames = [f"{len(medium.frames):,} frames"] * (medium.kind == VIDEO.kind)
    return ", ".join(sizes + frames) or None
