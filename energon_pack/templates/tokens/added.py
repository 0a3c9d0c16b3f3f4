"""Find the added tokens of a tokenizer, such as `<|im_start|>`, which cut a text before anything else does.

RunSqueezer of thousands of tokens for visual features are shown to the tokenizer as one token.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, repeat

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Tokenizer

Ids = npt.NDArray[np.int64]
Ranges = list[tuple[int, int]]
#: where the first token of a run ends in the text without runs, and how many more of it come
TokenRun = tuple[int, int]


class AddedTokens:
    """Finds added tokens, such as `<|im_end|>`, in texts: the leftmost, then the longest, as tokenizers do."""

    def __init__(self, tokens: Iterable[str]):
        longest_first = sorted(tokens, key=len, reverse=True)
        self.longest = len(longest_first[0]) if longest_first else 0
        #: a regular expression without groups
        self.source = "|".join(map(re.escape, longest_first)) or "(?!)"
        self.pattern = re.compile(self.source)
        self.all = tuple(longest_first)
        self._begins = {token[:i] for token in self.all for i in range(1, len(token))}
        self._ends = {token[i:] for token in self.all for i in range(1, len(token))}
        self._stands_alone: dict[str, bool | None] = dict.fromkeys(self.all)  # None: not computed yet

    def ends_in_token_start(self, text: str) -> bool:
        """Say whether the end of a text is the beginning of an added token, as in `a<|im_`."""
        return any(text[-i:] in self._begins for i in range(1, min(len(text), self.longest) + 1))

    def never_overlaps(self, text: str) -> bool:
        """Say whether a text is an added token that no other added token can overlap in any text."""
        known = self._stands_alone.get(text, False)
        if known is None:
            known = self._stands_alone[text] = (
                not self.ends_in_token_start(text)
                and not any(text[:i] in self._ends for i in range(1, len(text)))
                and not any(text in other for other in self.all if other != text)
            )
        return known

    def find_all(self, text: str) -> list[tuple[int, str]]:
        """Return the position and the text of each added token in a text; four times as fast as `pattern`."""
        places: list[tuple[int, str]] = []
        following = {token: start for token in self.all if (start := text.find(token)) >= 0}  # longest first
        while following:
            token = min(following, key=following.__getitem__)
            places.append((following[token], token))
            end = following[token] + len(token)
            for passed in [token for token, start in following.items() if start < end]:
                following[passed] = text.find(passed, end)
                if following[passed] < 0:
                    del following[passed]
        return places


class RunSqueezer:
    """Shortens runs of one added token, such as thousands of image tokens, before a text is tokenized."""

    def __init__(self, tokenizer: Tokenizer, tokens: Iterable[str]):
        added = {token.content: token for token in tokenizer.get_added_tokens_decoder().values()}
        known = AddedTokens(added)
        tokens = {*tokens} & added.keys()
        self._tokens = sorted(token for token in tokens if _is_plain(added[token]) and known.never_overlaps(token))

    def squeeze(self, text: str, spans: Ranges) -> tuple[str, Ranges, list[TokenRun]]:
        """Shorten each run to one token; return the text, the spans in it, and the runs: none if a span cuts one."""
        places = self._places(text)
        if not places or _cut_a_run(spans, [(start, end) for start, end, _ in places]):
            return text, spans, []
        pieces: list[str] = []
        runs: list[TokenRun] = []
        shifts = [0]
        cursor = 0
        for start, end, length in places:
            pieces.append(text[cursor : start + length])
            runs.append((start + length - shifts[-1], (end - start) // length - 1))
            shifts.append(shifts[-1] + end - start - length)
            cursor = end
        ends = [end for _, end, _ in places]

        def moved(position: int) -> int:
            return position - shifts[bisect_right(ends, position)]

        return "".join([*pieces, text[cursor:]]), [(moved(start), moved(end)) for start, end in spans], runs

    def _places(self, text: str) -> list[tuple[int, int, int]]:
        """Return where runs begin and end, and the length of their token."""
        places = []
        for token in self._tokens:
            start = text.find(token * 2)
            while start >= 0:
                end = start + 2 * len(token)
                for several in (token * 64, token * 8, token):
                    while text.startswith(several, end):
                        end += len(several)
                places.append((start, end, len(token)))
                start = text.find(token * 2, end)
        return sorted(places)


def expand_runs(ids: Ids, numbers: Mapping[int, int], spans: Ranges, runs: Sequence[TokenRun]) -> tuple[Ids, Ranges]:
    """Undo `squeeze` in ids: return the ids with all runs at full length, and the token ranges of the spans.

    Args:
        ids: the ids of the text with short runs.
        numbers: by position in that text, how many of these tokens begin before it.
    """
    if not runs:
        return ids, [(numbers[start], numbers[end]) for start, end in spans]
    ends, more = [numbers[end] for end, _ in runs], [times for _, times in runs]
    repeats = np.ones(len(ids), np.int64)
    repeats[np.array(ends) - 1] += more
    shifts = [0, *accumulate(more)]

    def moved(position: int) -> int:
        return numbers[position] + shifts[bisect_right(ends, numbers[position])]

    return np.repeat(ids, repeats), [(moved(start), moved(end)) for start, end in spans]


def cut_to_range(ids: Ids, ranges: Ranges, token_range: tuple[int, int] | None) -> tuple[Ids, Ranges]:
    """Return the ids in `token_range`, and the part of each range in it, counted from its start; None: everything."""
    if token_range is None:
        return ids, ranges
    start, end = token_range
    return ids[start:end], [(max(first, start) - start, max(min(last, end), start) - start) for first, last in ranges]


def ranges_without_first_token(ranges: Ranges, weights: Sequence[float] = ()) -> tuple[Ranges, list[float]]:
    """Return token ranges without token 0, which nothing predicts, and their weights (an empty list: all are 1)."""
    pairs = zip(ranges, weights or repeat(1.0, len(ranges)), strict=True)
    trained = [((max(start, 1), end), weight) for (start, end), weight in pairs if end > max(start, 1)]
    kept = [weight for _, weight in trained]
    return [place for place, _ in trained], kept if any(weight != 1 for weight in kept) else []


def _is_plain(token: AddedToken) -> bool:
    return not (token.lstrip or token.rstrip or token.single_word or token.normalized)


def _cut_a_run(spans: Ranges, runs: Ranges) -> bool:
    """Say whether a span begins or ends within a run; both ascend."""
    starts = [start for start, _ in runs]
    for position in (end for span in spans for end in span):
        index = bisect_left(starts, position) - 1
        if index >= 0 and position < runs[index][1]:
            return True
    return False
