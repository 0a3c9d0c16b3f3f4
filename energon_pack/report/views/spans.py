"""Split the tokens of a member into spans of one kind: text, special tokens, media; trained text is apart.

    MemberTokens ──tokenizer──► Span, Span, …   all of its tokens, once each, as they are trained

All tokens from the first to the last that hold features of a medium are one span.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from energon_pack.report.views.view import MediumView, MemberView, Span
from energon_pack.samples.media.kinds import AUDIO, KINDS, VIDEO
from energon_pack.samples.tokens import MediumInput, MemberTokens

if TYPE_CHECKING:  # a look at a pack needs no tokenizer
    from energon_pack.templates.template import Template


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


def spans_of(tokens: MemberTokens, vocabulary: TokenDecoder, media: Sequence[str]) -> list[Span]:
    """Split the tokens of a member into spans: text by weight, special tokens, and one span for each medium.

    `media`: a short description of each medium, which is the text of its span.
    """
    ids = tokens.ids.tolist()
    medium_of: list[int | None] = [None] * len(ids)
    for index, place in enumerate(media_places(tokens, vocabulary.feature_ids)):
        medium_of[place] = [index] * (place.stop - place.start)
    added = vocabulary.tokenizer.get_added_tokens_decoder()
    special = [
        own is None and token in added and added[token].special and token
        for own, token in zip(medium_of, ids, strict=True)
    ]
    alike = [*zip(medium_of, special, tokens.token_weights, strict=True)]
    spans = []
    for (number, token, weight), group in groupby(range(len(ids)), key=alike.__getitem__):
        places = [*group]
        if number is None:
            text = vocabulary.text(ids, places[0], places[-1] + 1)
            spans.append(Span(text, "text" if token is False else "special", len(places), weight))
        else:
            spans.append(Span(media[number], tokens.media[number].kind, len(places), weight))
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


def vocabulary_of(template: "Template") -> TokenDecoder:
    """Return the vocabulary of a chat template's tokenizer."""
    return TokenDecoder(template.tokenizer, template.feature_ids)


def with_tokens(view: MemberView, tokens: MemberTokens, vocabulary: TokenDecoder) -> MemberView:
    """Add the tokens of a member to its view: spans, exact counts, and the tokens of each medium."""
    media = [*_media_as_seen(view.media, tokens.media)]
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
