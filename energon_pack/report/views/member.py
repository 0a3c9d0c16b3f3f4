"""Add a member's tokens to its view, and how many of them each medium takes."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from energon_pack.report.views.spans import Vocabulary, media_places, spans_of
from energon_pack.report.views.view import Medium, MemberView
from energon_pack.samples.media.kinds import KINDS, VIDEO
from energon_pack.samples.tokens import MemberTokens, SeenMedium
from energon_pack.templates.template import Template


def vocabulary_of(template: Template) -> Vocabulary:
    """Return what turns the ids of a template into text."""
    return Vocabulary(template.tokenizer, template.feature_ids)


def encoded(view: MemberView, tokens: MemberTokens, vocabulary: Vocabulary) -> MemberView:
    """Return the member's view with its tokens.

    Args:
        view: has the same media, in the same order.

    Raises:
        ValueError: it has others.
    """
    media = [*_as_seen(view.media, tokens.media)]
    visual = [number for kind, number in vocabulary.feature_ids.items() if KINDS[kind].is_visual]
    return replace(
        view,
        token_len=len(tokens),
        num_supervised=tokens.num_supervised,
        num_visual_tokens=int(np.isin(tokens.ids, visual).sum()),
        media=[
            replace(medium, num_tokens=place.stop - place.start)
            for medium, place in zip(media, media_places(tokens, vocabulary.feature_ids), strict=True)
        ],
        spans=spans_of(tokens, vocabulary, [f"{medium.kind} {medium.size}" for medium in media]),
        weight=tokens.factor,
    )


def _as_seen(media: Sequence[Medium], seen: Sequence[SeenMedium]) -> Iterator[Medium]:
    """Yield the media as a model sees them; the frames of a list are one video, and its picture is the first one's."""
    parts = iter(media)
    for medium in seen:
        own = [*islice(parts, medium.num_images or 1)]
        if len(own) != (medium.num_images or 1):
            raise ValueError("its tokens are of more media than it has")
        if medium.num_images:
            num_bytes = sum(frame.num_bytes or 0 for frame in own)
            own[0] = replace(own[0], kind=VIDEO.kind, num_frames=medium.num_images, num_bytes=num_bytes)
        yield replace(own[0], seen=_changes(medium))
    if next(parts, None) is not None:
        raise ValueError("its tokens are of fewer media than it has")


def _changes(medium: SeenMedium) -> str | None:
    """Say how `media.*` changes a medium before the processor gets it, and a video's frames; None: unchanged."""
    sizes = [f"{step.width}×{step.height}" for step in medium.steps[-1:]]
    frames = [f"{len(medium.frames):,} frames"] * (medium.kind == VIDEO.kind)
    return ", ".join(sizes + frames) or None
