"""One sample as the model would see it alone: its tokens, labels, positions and media."""

import io
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from energon_pack.samples.flavors.base import MemberInput
from energon_pack.samples.media.probe import Media, probe, with_frames
from energon_pack.samples.placeholders import split_content
from energon_pack.templates.processor_inputs import Clip, clip
from energon_pack.templates.template import Rendered, Sample, Template, Tokens
from energon_pack.training.layout import IGNORE, Member
from energon_pack.training.pixels import Pixels
from energon_pack.training.rope import Rope, rope_positions

_log = logging.getLogger(__name__)


class LengthError(Exception):
    """A member has another length than it was packed with."""


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

    def encode(self, member: MemberInput) -> Encoded:
        """One member, with its media.

        Raises:
            LengthError: it has not the length it was packed with; names it, both lengths and the fingerprint.
            Exception: whatever its media or texts make of themselves.
        """

        def fail(_: MemberInput, error: Exception) -> None:
            raise error

        (encoded,), media = self.encode_all([member], fail)
        return replace(encoded, media=media)

    def encode_all(
        self, inputs: Iterable[MemberInput], on_bad: Callable[[MemberInput, Exception], None]
    ) -> tuple[list[Encoded], dict[str, Tensor]]:
        """The members of a pack, and the media of them all, in their order: one call of the processor.

        Args:
            on_bad: told of each member that can't be encoded; where it returns, that member is left out.

        Raises:
            LengthError: as `encode`.
        """
        drafts: list[_Draft] = []
        for member in inputs:
            try:
                drafts.append(self._draft(member))
            except Exception as error:  # damaged media make decoders raise anything
                on_bad(member, error)
        tokens = self._template.tokenize([draft.rendered for draft in drafts])
        for draft, of in zip(drafts, tokens, strict=True):
            _check_length(draft.member, len(of.ids), self._template.fingerprint)
        try:
            media = self._media(drafts)
        except Exception:  # which of them it is, each alone tells
            good = []
            for draft, of in zip(drafts, tokens, strict=True):
                try:
                    self._media([draft])
                    good.append((draft, of))
                except Exception as error:
                    on_bad(draft.member, error)
            drafts, tokens = [draft for draft, _ in good], [of for _, of in good]
            media = self._media(drafts)
        return self._encoded(drafts, tokens, media), media

    def probe_members(self) -> list[Encoded]:
        """Short members to try a model with: text, and noise of each kind of media that the processor makes."""
        members: list[Encoded] = []
        for kind in ("", *(kind for kind in ("image", "video") if kind in self._template.rules.media_tokens), ""):
            draft = self._noise(kind, len(members))
            try:
                media = self._media([draft])
                (encoded,) = self._encoded([draft], self._template.tokenize([draft.rendered]), media)
            except (ImportError, ValueError) as error:  # then no such medium is trained on here, either
                _log.info("a model is not tried with a %s: %s", kind, error)
                continue
            members.append(replace(encoded, media=media))
        return members

    def _noise(self, kind: str, number: int) -> "_Draft":
        """A member with one medium of random pixels, or with none."""
        size, num_frames = (64, 96), 4
        pixels = np.random.default_rng(number).integers(0, 256, (num_frames, *size, 3), np.uint8)
        asked, answered = (
            f"{f'<{kind}>' if kind else ''} What is number {number}?",
            f"A {kind or 'word'}, {number} of 9.",
        )
        messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
        media = {"": [], "image": [Media("image", *size[::-1])]}.get(kind)
        if media is None:
            media = [Media("video", *size[::-1], "mp4", num_frames, 2.0, tuple(range(num_frames)))]
        metadata = {"total_num_frames": num_frames, "fps": 2.0, "frames_indices": [*range(num_frames)], "duration": 2.0}
        frames = np.stack(
            [np.asarray(frame) for frame in self._template.prepare_frames([*map(Image.fromarray, pixels)])]
        )
        return _Draft(
            MemberInput(f"{kind or 'text'} {number}", messages),
            self._template.render(Sample(messages, media)),
            [self._template.prepare_image(Image.fromarray(pixels[0]))] if kind == "image" else [],
            [(frames, metadata)] if kind == "video" else [],
            [kind] if kind else [],
        )

    def _encoded(self, drafts: Sequence["_Draft"], tokens: Sequence[Tokens], media: dict[str, Tensor]) -> list[Encoded]:
        """Members without their media: those of all are together."""
        images = _shares(media, ("image_grid_thw",), [len(draft.images) for draft in drafts])
        videos = _shares(media, ("video_grid_thw", "second_per_grid_ts"), [len(draft.clips) for draft in drafts])
        return [
            Encoded(draft.member.sample_id, member, num_images=len(draft.images), num_videos=len(draft.clips))
            for draft, member in zip(drafts, self._members(tokens, images, videos), strict=True)
        ]

    def _draft(self, member: MemberInput) -> "_Draft":
        """A member with its media decoded and its text rendered."""
        template = self._template
        for image in member.images:
            image.load()
        if b"" in member.videos:
            raise OSError(f"its video {member.videos.index(b'')} is missing from the pack")
        videos = with_frames([probe(io.BytesIO(data)) for data in member.videos], member.video_frames)
        media = [*(Media("image", *image.size) for image in member.images), *videos]
        return _Draft(
            member,
            template.render(Sample(member.messages, media, member.tools)),
            [template.prepare_image(image) for image in member.images],
            [clip(template, data, video) for data, video in zip(member.videos, videos, strict=True)],
            _order(member.messages, media),
        )

    def _media(self, drafts: Sequence["_Draft"]) -> dict[str, Tensor]:
        images = [image for draft in drafts for image in draft.images]
        clips = [clip for draft in drafts for clip in draft.clips]
        return self._pixels(images, clips, [kind for draft in drafts for kind in draft.order])

    def _members(
        self, tokens: Sequence[Tokens], images: list[dict[str, Tensor]], videos: list[dict[str, Tensor]]
    ) -> Iterator[Member]:
        """Tokens as tensors, with the positions that their media give them; views of one tensor for them all."""
        lengths = [len(of.ids) for of in tokens]
        ids = torch.tensor([token for of in tokens for token in of.ids], dtype=torch.int64)
        labels = torch.full_like(ids, IGNORE)
        for first, of in zip(accumulate(lengths, initial=0), tokens, strict=False):
            for start, end in of.supervised:
                start = first + max(start, 1)
                labels[start : first + end] = ids[start : first + end]
        types = torch.zeros_like(ids)
        for number, feature in self._types:
            if feature is not None:
                types[(ids == feature) & (types == 0)] = number
        split = zip(*(values.split(lengths) for values in (ids, labels, types)), images, videos, strict=True)
        for own_ids, own_labels, own_types, image, video in split:
            rope = None if self._rope is None else rope_positions(self._rope, own_types, **image, **video)
            yield Member(own_ids, own_labels, own_types, rope)

    def blank(self) -> dict[str, Tensor]:
        """The media of one small white image, for ranks whose pack has none."""
        return self._pixels([self._template.prepare_image(Image.new("RGB", (64, 64), "white"))], [], ["image"])


@dataclass(frozen=True)
class _Draft:
    """A member on its way."""

    member: MemberInput
    rendered: Rendered
    images: list[Any]
    clips: list[Clip]
    order: list[str]


def _check_length(member: MemberInput, num_tokens: int, fingerprint: str) -> None:
    if member.token_len is not None and num_tokens != member.token_len:
        raise LengthError(
            f"{member.sample_id} has {num_tokens} tokens in training, {member.token_len} when it was packed"
            f" (fingerprint {fingerprint})"
        )


def _shares(media: dict[str, Tensor], names: Sequence[str], counts: Sequence[int]) -> list[dict[str, Tensor]]:
    """What of these belongs to each member: so many rows."""
    shares: list[dict[str, Tensor]] = [{} for _ in counts]
    for name in names:
        if name in media and sum(counts) == len(media[name]):
            for share, rows in zip(shares, media[name].split(list(counts)), strict=True):
                share[name] = rows
    return shares


def _order(messages: list[dict[str, Any]], media: Sequence[Media]) -> list[str]:
    """Kinds of the media in the order of their placeholders."""
    contents = [message["content"] for message in split_content(messages, [medium.kind for medium in media])]
    parts = [part for content in contents if not isinstance(content, str) for part in content]
    return [part["type"] for part in parts if part["type"] != "text"]
