"""What transformers' prefixes train of our own conversations, beside what we train.

conversations ──ours, prefix──► tokens with weights ──judge──► rows that differ
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from energon_pack.samples.skip import Skip
from energon_pack.templates.template import Template
from support.labels.folders import build_template
from support.labels.prefix import Prefix
from support.labels.truth import Ours, render, sample_of, shown

Row = dict[str, Any]

#: a tag that the prompt of some models writes, and its beginning or end where a token holds more
_THINK = re.compile(r"</?think(></?|>)?")


@dataclass
class Judged:
    """One conversation with one template."""

    name: str
    #: same, space, words, labels, text, skipped; refused: by the template itself; alone: no source has our ids
    status: str
    detail: str = ""
    ours: str = ""
    sources: dict[str, str] = field(default_factory=dict)
    #: sources that have our ids
    same_ids: tuple[str, ...] = ()

    @property
    def is_right(self) -> bool:
        return self.status in ("same", "space", "words", "alone", "refused")


@dataclass
class Tokens:
    """Tokens of one conversation with how much each counts, media as one placeholder each."""

    ids: list[int]
    weights: list[float]
    pieces: list[str]
    starts: list[int]


def our_tokens(template: Template, ours: Ours) -> Tokens:
    """Return the trained tokens of our labels."""
    encoding = template.tokenizer.encode(ours.text, add_special_tokens=False)
    spans = [ours.weights[start:end] for start, end in encoding.offsets]
    weights = [max(span, default=0.0) if all(span) else 0.0 for span in spans]
    pieces = [ours.text[start:end] for start, end in encoding.offsets]
    return Tokens(encoding.ids, weights, pieces, [start for start, _ in encoding.offsets])


def judge(name: str, tokens: Tokens, sources: dict[str, list[float]], media: set[int]) -> Judged:
    """Our weights beside those of the sources that have our ids."""
    text = {source: _shown(tokens, weights) for source, weights in sources.items()}
    judged = Judged(name, "same", "", _shown(tokens, tokens.weights), text, tuple(sources))
    if not sources:
        judged.status = "alone"
        return judged
    wrong = []
    for i, weight in enumerate(tokens.weights):
        theirs = {round(weights[i], 6) for weights in sources.values()}
        if tokens.ids[i] in media:
            if weight:
                judged.status, judged.detail = "media", f"{tokens.pieces[i]} is a label"
                return judged
        elif round(weight, 6) not in theirs and i:
            wrong.append(i)
    if wrong:
        pieces = [tokens.pieces[i] for i in wrong]
        judged.detail = f"{len(wrong)} tokens: {pieces[:8]}"
        has_words = any(character.isalnum() for character in _THINK.sub("", "".join(pieces)))
        judged.status = (
            "space" if not "".join(pieces).strip() else "labels" if has_words or len(sources) > 1 else "words"
        )
    return judged


def _shown(tokens: Tokens, weights: Sequence[float]) -> str:
    by_character: list[float] = []
    for piece, weight in zip(tokens.pieces, weights, strict=True):
        by_character += [weight] * len(piece)
    return shown("".join(tokens.pieces), by_character)


def prefix_weights(prefix: Prefix, conversation: Row, tokens: Tokens, text: str) -> list[float] | None:
    """The weights that prefix rendering gives our tokens; None where it does not tell."""
    spans = prefix.spans(conversation)
    counts = conversation.get("wanted", [1.0] * len(spans))
    if None in spans or prefix.text(conversation) != text:
        return None
    weights = [0.0] * len(tokens.ids)
    for (start, end), count in zip((span for span in spans if span), counts, strict=True):
        for i, (at, piece) in enumerate(zip(tokens.starts, tokens.pieces, strict=True)):
            if at >= start and at + len(piece) <= end:
                weights[i] = count
    return weights


def judge_template(name: str, folder: Path, rows: list[Row]) -> Iterator[Judged]:
    """All conversations with one template."""
    template = build_template(name, folder, after_turn=True)
    prefix = Prefix(folder, **dict(template.spec.chat_template_kwargs))
    media = {template.token_id(token) for token in template.rules.media_tokens.values()}
    media_ids = {id_ for id_ in media if id_ is not None}
    for conversation in rows:
        label = f"{name}/{conversation['id']}"
        given = {key: value for key, value in conversation.items() if key not in ("id", "wanted", "key")}
        true_text = prefix.text(conversation)
        try:
            ours = render(template, sample_of(given))
        except Skip as skip:
            yield Judged(label, "skipped" if true_text is not None else "refused", str(skip))
            continue
        tokens = our_tokens(template, ours)
        if true_text is not None and true_text != ours.text:
            yield Judged(label, "text", "", ours.text, {"transformers": true_text})
            continue
        sources: dict[str, list[float]] = {}
        by_prefix = prefix_weights(prefix, conversation, tokens, ours.text)
        if by_prefix is not None:
            sources["prefix"] = by_prefix
        if ours.media_labels:
            yield Judged(label, "media", f"{ours.media_labels} labels")
            continue
        yield judge(label, tokens, sources, media_ids)
