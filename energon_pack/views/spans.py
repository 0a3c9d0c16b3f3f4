"""Split the tokens of a sample into spans of one kind: text, special tokens, media; trained text is apart.

    Rendered ──tokenizer──► ids, and the characters of each ──spans_of──► Span, Span, …   all of its tokens, once each

A character that takes several tokens is shown with the first of them. All tokens of a medium are one span.
"""

from itertools import groupby, repeat

from energon_pack.samples.media.kinds import KINDS
from energon_pack.templates.sample import Rendered, Sample
from energon_pack.templates.template import Template
from energon_pack.templates.tokens.runs import token_ranges, within_range, without_first
from energon_pack.views.view import Span


def spans_of(template: Template, sample: Sample, rendered: Rendered) -> list[Span]:
    """Split the tokens of a sample into spans.

    Args:
        rendered: the sample as the template wrote it.
    """
    tokenizer = template.tokenizer
    encoding = tokenizer.encode(rendered.text, add_special_tokens=template.spec.add_special_tokens)
    offsets, special = encoding.offsets, tokenizer.get_added_tokens_decoder()
    first, last = rendered.token_range or (0, len(offsets))
    _, ranges = within_range(encoding.ids, token_ranges(offsets, rendered.spans), (first, last))
    supervised, weights = without_first(ranges, rendered.weights)
    weight_of = [0.0] * len(offsets)
    for (start, end), weight in zip(supervised, weights or repeat(1.0), strict=False):
        weight_of[first + start : first + end] = [weight] * (end - start)
    medium_of: list[int | None] = [None] * len(offsets)
    for place, (start, end) in enumerate(token_ranges(offsets, sorted(rendered.media))):
        medium_of[start:end] = [place] * (end - start)
    in_order = [sample.media[i] for _, i in sorted((place, i) for i, place in enumerate(rendered.media))]
    is_special = [token in special and special[token].special for token in encoding.ids]

    spans, done = [], offsets[first - 1][1] if first else 0  # characters that are in a span already, or left out
    alike = [
        (n, n is None and token, weight) for n, token, weight in zip(medium_of, is_special, weight_of, strict=True)
    ]
    for (number, is_token, weight), group in groupby(range(first, last), key=alike.__getitem__):
        indices = list(group)
        end = max(done, offsets[indices[-1]][1])
        text, kind = rendered.text[done:end], "special" if is_token else "text"
        if not text:  # a token that the tokenizer adds around the text
            text = "".join(tokenizer.id_to_token(encoding.ids[i]) or "" for i in indices) if is_token else ""
        if number is not None:
            medium = in_order[number]
            text, kind = f"{medium.kind} {KINDS[medium.kind].size(medium)}", medium.kind
        spans.append(Span(text, kind, len(indices), weight))
        done = end
    return spans
