"""Hash the first tokens of a sample at each place where another sample may continue differently, to find equal
beginnings.

    <|im_start|>user⏎<|vision_start|>▒▒▒▒▒▒<|vision_end|>What is it?<|im_end|>⏎<|im_start|>assistant⏎A cat.<|im_end|>⏎
    ▲                                                   ▲            ▲          ▲                        ▲         ▲
    a place stands before each special token, behind each medium, and at the end

Equal hashes mean equal token ids, with the same media and settings in the same places.
"""

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

from energon_pack.samples.media.kinds import IMAGE, KINDS, VIDEO
from energon_pack.templates.sample import Rendered
from energon_pack.templates.template import Template


class BeginningHash(NamedTuple):
    """A hash of the first `token_len` tokens of a sample, and what they contain; equal beginnings can be shared."""

    high: int  # hash of 128 bits, as two numbers
    low: int
    token_len: int
    num_images: int
    num_videos: int
    num_visual_tokens: int
    may_fork: bool  # the next token is not trained, so a branch may begin with it
    ends_medium: bool


def beginning_hashes(
    template: Template, rendered: Sequence[Rendered], media: Sequence[Sequence[tuple[str, bytes]]]
) -> list[list[BeginningHash]]:
    """Return for each sample the hashes of its beginnings, ascending in length; the last covers the whole sample.

    Args:
        media: for each sample, kind and hash of each medium, in the order of `Rendered.media`. The result is empty for
            a sample whose media have no place in its text, or that is only a `token_range` of its text.
    """
    special, features = template.special_ids, frozenset(template.feature_ids.values())
    places = [sorted([*item.spans, *item.media]) for item in rendered]
    located = template.located([(item.text, spans) for item, spans in zip(rendered, places, strict=True)])
    results = []
    for item, of_media, spans, (ids, ranges) in zip(rendered, media, places, located, strict=True):
        tokens_of = dict(zip(spans, ranges, strict=True))
        if len(of_media) != len(item.media) or (0, 0) in item.media or item.token_range:
            results.append(list[BeginningHash]())
            continue
        in_order = sorted(zip((tokens_of[place] for place in item.media), of_media, strict=True))
        trained = [tokens_of[span] for span in item.spans]
        results.append(_hash_beginnings(ids.tolist(), in_order, trained, special, features))
    return results


def _hash_beginnings(
    ids: Sequence[int],
    media: Sequence[tuple[tuple[int, int], tuple[str, bytes]]],
    trained: Sequence[tuple[int, int]],
    special: frozenset[int],
    features: frozenset[int],
) -> list[BeginningHash]:
    """Return the beginnings of one sample; `media`: the token range of each medium, and its kind and hash."""
    inside = {place for (start, end), _ in media for place in range(start + 1, end)}
    ends = set[int]()
    for (_, end), _ in media:
        while end < len(ids) and ids[end] in special and ids[end] not in features:
            end += 1
        ends.add(end)
    stops = {place for place, token in enumerate(ids) if token in special and token not in features and place}
    is_trained = {place for start, end in trained for place in range(start, end)}
    data, waiting, results = array("i", ids), [*media], list[BeginningHash]()
    running, hashed, counts, num_visual = blake2b(digest_size=16), 0, dict.fromkeys(KINDS, 0), 0
    for stop in sorted(((stops | ends) - inside) | {len(ids)}):
        while waiting and waiting[0][0][1] <= stop:
            (_, end), (kind, digest) = waiting.pop(0)
            running.update(data[hashed:end].tobytes() + digest)
            num_visual += sum(token in features for token in ids[hashed:end])
            hashed = end
            counts[kind] += 1
        running.update(data[hashed:stop].tobytes())
        num_visual += sum(token in features for token in ids[hashed:stop])
        hashed = stop
        digest = running.digest()
        high, low = int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")
        may_fork = stop < len(ids) and stop not in is_trained
        results.append(
            BeginningHash(high, low, stop, counts[IMAGE.kind], counts[VIDEO.kind], num_visual, may_fork, stop in ends)
        )
    return results
