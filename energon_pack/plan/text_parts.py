"""Cut a document into parts between its tokens (`packing.overlong=split_text`), so that no token is lost or changed.

    tokens of the document   <bos> The  cat  sat  on  the  mat  .  <end>          at most 4 a part
    parts                    <bos> The  cat  sat | on  the  mat  . | …

A tokenizer may read a piece of a text otherwise than within the whole text. So each part has as much text around it as
makes its tokens come out alike, and says which tokens of that text it is.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from energon_pack.lengths.worker import LengthsRow
from energon_pack.plan import caps
from energon_pack.plan.sample_parts import WholeSample
from energon_pack.plan.settings import PackingConfig
from energon_pack.samples.cut import Cut
from energon_pack.sources.tar import num_tar_bytes

#: characters around a part that are tried
_CONTEXT_CHARS = (0, 16, 256, 4096)
_NO_TOKEN_LIMIT = (1 << 31) - 1  # tokens


def text_parts(whole: WholeSample, packing: PackingConfig) -> Iterator[LengthsRow]:
    """Cut a document into parts of as many tokens as fit a pack; yield the row of lengths of each.

    Yields nothing if a pack holds fewer than two tokens of text.
    """
    text, rendered = whole.sample.messages[0]["content"], whole.template.render(whole.as_sample)
    most = most_tokens(packing)
    if most < 2 or not isinstance(text, str):
        return
    [tokens] = whole.template.tokenize([rendered])
    before = rendered.token_range[0] if rendered.token_range else 0
    places = whole.template.token_places(rendered.text)[before : before + len(tokens.ids)]
    begin = rendered.text.index(text)
    for start, end in pairwise(part_edges(places, most)):
        last = places[end - 1][1] - begin if end < len(places) else len(text)
        span = places[start][0] - begin, last
        yield _part(whole, text, span, before + start, tokens.ids[start:end])


def most_tokens(packing: PackingConfig) -> int:
    """Return how many tokens a member without media may have in a pack, by all limits."""
    none = dict.fromkeys(caps.COLUMNS, 0)
    numbers = range(1, packing.max_token_len + 1)
    return bisect_left(numbers, True, key=lambda n: bool(caps.exceeded_limits({**none, "token_len": n}, packing)))


def part_edges(places: Sequence[tuple[int, int]], most: int) -> list[int]:
    """Return the index of the first token of each part, and the end; no part begins within a character.

    Args:
        places: for each token, the index of its first character, and of the character after it.
        most: tokens of a part; the last part has at least two.
    """
    edges = [0]
    while len(places) - edges[-1] > most:
        end = edges[-1] + most
        end -= len(places) - end == 1  # the first token of a part trains nothing
        may_end = (i for i in range(end, edges[-1] + 1, -1) if places[i][0] >= places[i - 1][1])
        edges.append(next(may_end, end))
    return [*edges, len(places)]


def _part(whole: WholeSample, text: str, span: tuple[int, int], number: int, ids: list[int]) -> LengthsRow:
    """Return the row of lengths of a part: characters `span` of `text`, and the tokens `ids` from `number` on."""
    first, last, start = _context_of_part(whole, text, span, ids) or (0, len(text), number)
    cut = _text_cut(first, last, start, start + len(ids))
    part, rendered = whole.rendered(cut)
    [counts] = whole.template.count([rendered], whole.engine)
    num_bytes = num_tar_bytes([len(text[first:last].encode())])
    return replace(whole.row_of_part(cut, part, rendered, *counts), num_bytes=num_bytes)


def _context_of_part(
    whole: WholeSample, text: str, span: tuple[int, int], ids: list[int]
) -> tuple[int, int, int] | None:
    """Find a short range of characters around a part in which the tokenizer gives the same tokens for it.

    Returns the range's start and end, and the index of the part's first token in it; None: none that is tried does.
    """
    for around in _CONTEXT_CHARS:
        first, last = max(0, span[0] - around), min(len(text), span[1] + around)
        [window] = whole.template.tokenize([whole.rendered(_text_cut(first, last, 0, _NO_TOKEN_LIMIT))[1]])
        start = next(_occurrences(window.ids, ids), None)
        if start is not None and text[first:last].strip():
            return first, last, start
    return None


def _text_cut(first: int, last: int, first_token: int, end_token: int) -> Cut:
    whole = Cut("", 0, 1, last - first, "", "tokens")
    return whole._replace(first_character=first, first_token=first_token, end_token=end_token)


def _occurrences(window: list[int], ids: list[int]) -> Iterator[int]:
    """Yield each index at which the ids of a part begin in the ids of a window."""
    num = len(ids)
    yield from (i for i in range(len(window) - num + 1) if window[i] == ids[0] and window[i : i + num] == ids)
