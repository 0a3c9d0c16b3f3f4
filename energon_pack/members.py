"""One sample as the model would see it alone: its tokens, labels, positions and media."""

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from energon_pack.layout import IGNORE, Member
from energon_pack.media import Media, probe, with_frames
from energon_pack.pixels import Pixels, clip
from energon_pack.rope import Rope, rope_positions
from energon_pack.sample import split_content
from energon_pack.templates import Sample, Template, Tokens


class LengthError(Exception):
    """A member has another length than it was packed with."""


@dataclass(frozen=True)
class Source:
    """A member as a flavour holds it."""

    sample_id: str
    messages: list[dict[str, Any]]
    images: Sequence[Any] = ()
    videos: Sequence[bytes] = ()
    tools: list[Any] | None = None
    video_frames: Any = None
    #: as it was measured; None: it was not
    token_len: int | None = None


@dataclass(frozen=True)
class Encoded:
    """A member, ready to be laid out."""

    sample_id: str
    tokens: Member
    media: dict[str, Tensor] = field(default_factory=dict)
    num_images: int = 0
    num_videos: int = 0


class MemberEncoder:
    """Encodes members for one model."""

    def __init__(self, template: Template, rope: Rope | None = None):
        self._template = template
        self._rope = rope
        self._pixels = Pixels(template)
        rules = template.rules
        names = {**rules.media_tokens, **rules.feature_tokens}
        #: type of a token, and the token that has it
        self._types = [(i, template.token_id(names[k])) for i, k in ((1, "image"), (2, "video")) if k in names]

    def encode(self, source: Source) -> Encoded:
        """One member.

        Raises:
            LengthError: it has not the length it was packed with; names it, both lengths and the fingerprint.
            Exception: whatever its media or texts make of themselves.
        """
        template = self._template
        for image in source.images:
            image.load()
        images = [Media("image", *image.size) for image in source.images]
        videos = with_frames([probe(io.BytesIO(data)) for data in source.videos], source.video_frames)
        tokens = template.encode(Sample(source.messages, [*images, *videos], source.tools))
        if source.token_len is not None and len(tokens.ids) != source.token_len:
            raise LengthError(
                f"{source.sample_id} has {len(tokens.ids)} tokens in training, {source.token_len} when it was packed"
                f" (fingerprint {template.fingerprint})"
            )
        media = self._pixels(
            [template.prepare_image(image) for image in source.images],
            [clip(template, data, video) for data, video in zip(source.videos, videos, strict=True)],
            _order(source.messages, [*images, *videos]),
        )
        return Encoded(source.sample_id, self.member(tokens, media), media, len(images), len(videos))

    def member(self, tokens: Tokens, media: dict[str, Tensor]) -> Member:
        """Tokens as tensors, with the positions that their media give them."""
        ids = torch.tensor(tokens.ids)
        labels = torch.full_like(ids, IGNORE)
        for start, end in tokens.supervised:
            labels[start:end] = ids[start:end]
        labels[:1] = IGNORE
        types = torch.zeros_like(ids)
        for number, feature in self._types:
            if feature is not None:
                types[(ids == feature) & (types == 0)] = number
        rope = None
        if self._rope is not None:
            grids = {name: media.get(name) for name in ("image_grid_thw", "video_grid_thw", "second_per_grid_ts")}
            rope = rope_positions(self._rope, types, **grids)
        return Member(ids, labels, types, rope)

    def blank(self) -> dict[str, Tensor]:
        """The media of one small white image, for ranks whose pack has none."""
        from PIL import Image

        return self._pixels([self._template.prepare_image(Image.new("RGB", (64, 64), "white"))], [], ["image"])


def _order(messages: list[dict[str, Any]], media: Sequence[Media]) -> list[str]:
    """Kinds of the media in the order of their placeholders."""
    contents = [message["content"] for message in split_content(messages, [medium.kind for medium in media])]
    parts = [part for content in contents if not isinstance(content, str) for part in content]
    return [part["type"] for part in parts if part["type"] != "text"]
