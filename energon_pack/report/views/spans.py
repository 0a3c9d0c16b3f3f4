"""Split the tokens of a member into spans of one kind: text, special tokens, media; trained text is apart.

    MemberTokens ──tokenizer──► Span, Span, …   all of its tokens, once each, as they are trained

All tokens from the first to the last that hold features of a medium are one span.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from energon_pack.report.views.view import Span
from energon_pack.samples.media.kinds import AUDIO
from energon_pack.samples.tokens import MemberTokens


@dataclass(frozen=True)
class Vocabulary:
    """What turns ids into text."""

    tokenizer: Any  # of the package `tokenizers`
    feature_ids: Mapping[str, int]  # by kind of media: of the tokens that hold features

    def text(self, ids: Sequence[int], start: int, end: int) -> str:
        """Return the text of some ids, which begins as it does behind the id before them."""
        first = max(0, start - 1)
        before, all_of_it = (self.tokenizer.decode(ids[first:last], skip_special_tokens=False) for last in (start, end))
        return str(all_of_it).removeprefix(before)


def spans_of(tokens: MemberTokens, vocabulary: Vocabulary, media: Sequence[str]) -> list[Span]:
    """Split the tokens of a member into spans.

    Args:
        media: a short description of each of its media.
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
    alike = [*zip(medium_of, special, tokens.weight_of_each, strict=True)]
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
    """Yield the tokens of each medium, from the first to the last that hold its features."""
    done = 0
    for medium in tokens.media:
        held = np.flatnonzero(tokens.ids[done:] == feature_ids.get(medium.kind))[: medium.num_features] + done
        start, done = (int(held[0]), int(held[-1]) + 1) if len(held) else (done, done)
        while medium.kind != AUDIO.kind and medium.num_samples and done < len(tokens):  # the last of its sound
            if tokens.ids[done] != feature_ids.get(AUDIO.kind):
                break
            done += 1
        yield slice(start, done)
