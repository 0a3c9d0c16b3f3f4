"""Find the added tokens of a tokenizer, such as `<|im_start|>`, which cut a text before anything else does.

Runs of thousands of tokens for visual features are shown to the tokenizer as one token.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate, repeat
from operator import itemgetter

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Tokenizer

_SEAMS = {"<": "><", "[": "]["}  # first characters of tokens that come in runs, and the text between such tokens

Ids = list[int] | npt.NDArray[np.int64]
Ranges = list[tuple[int, int]]
#: where a run begins in the text without runs, its token, and its number of tokens
Run = tuple[int, str, int]


class AddedTokens:
    """Finds added tokens in texts. If several are possible, tokenizers take the leftmost, then the longest."""

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

    def may_go_on(self, text: str) -> bool:
        """Say whether an added token could begin within a text and end after it."""
        return any(text[-i:] in self._begins for i in range(1, min(len(text), self.longest) + 1))

    def stands_alone(self, text: str) -> bool:
        """Say whether a text is always an added token wherever it stands: no other can overlap it."""
        known = self._stands_alone.get(text, False)
        if known is None:
            known = self._stands_alone[text] = (
                not self.may_go_on(text)
                and not any(text[:i] in self._ends for i in range(1, len(text)))
                and not any(text in other for other in self.all if other != text)
            )
        return known

    def find_all(self, text: str) -> list[tuple[int, str]]:
        """Return the places of added tokens in a text, and the tokens."""
        return [(match.start(), match[0]) for match in self.pattern.finditer(text)]

    def runs(self, text: str) -> list[tuple[str, str, int]]:
        """Cut a text behind the first token of each run: the pieces, each run's token, and how many more of it come."""
        pieces = [(text, "", 0)]
        for begin, seam in _SEAMS.items():
            if seam in text:
                pieces = [cut for piece in pieces for cut in self._runs_at(seam, begin, *piece)]
        return pieces

    def _runs_at(self, seam: str, begin: str, text: str, last: str, num_more: int) -> list[tuple[str, str, int]]:
        pieces = []
        done, at = 0, text.find(seam)
        while at >= 0:
            end = position = at + 1
            token = text[max(text.rfind(begin, done, end), 0) : end]
            if self.stands_alone(token):
                for several in (token * 64, token * 8, token):
                    while text.startswith(several, position):
                        position += len(several)
                if position > end:
                    pieces.append((text[done:end], token, (position - end) // len(token)))
                    done = position
            at = text.find(seam, position)
        return [*pieces, (text[done:], last, num_more)]


class Runs:
    """Finds runs of added tokens that a tokenizer always reads as one token each."""

    def __init__(self, tokenizer: Tokenizer, tokens: Iterable[str]):
        added = {token.content: token for token in tokenizer.get_added_tokens_decoder().values()}
        known = AddedTokens(added)
        plain = [re.escape(t) for t in set(tokens) & added.keys() if _is_plain(added[t]) and known.stands_alone(t)]
        self._pattern = re.compile("|".join(f"({token})(?:{token})+" for token in sorted(plain)) or "(?!)")

    def squeeze(self, text: str, spans: Ranges) -> tuple[str, Ranges, list[Run]]:
        """Return a text with each run as one token, its spans in that text, and the runs; spans end outside of runs."""
        found = list(self._pattern.finditer(text))
        if not found or _cuts(spans, [match.span() for match in found]):
            return text, spans, []
        pieces: list[str] = []
        runs: list[Run] = []
        cursor = left_out = 0
        for match in found:
            token = match[match.lastindex or 0]
            pieces += [text[cursor : match.start()], token]
            runs.append((match.start() - left_out, token, len(match[0]) // len(token)))
            cursor = match.end()
            left_out += len(match[0]) - len(token)
        pieces.append(text[cursor:])
        ends = [match.end() for match in found]
        shifts = [0, *accumulate(len(token) * (times - 1) for _, token, times in runs)]

        def moved(position: int) -> int:
            return position - shifts[bisect_left(ends, position + 1)]

        return "".join(pieces), [(moved(start), moved(end)) for start, end in spans], runs


def grow(ids: list[int], offsets: Ranges, ranges: Ranges, runs: Sequence[Run]) -> tuple[list[int], Ranges]:
    """Return ids and token ranges of the text with its runs, from those of the text without."""
    grown: list[int] = []
    places: list[int] = []
    cursor = 0
    for position, token, times in runs:
        place = bisect_left(offsets, (position, position + len(token)))
        assert offsets[place] == (position, position + len(token)), "an added token was not read as one"
        grown += ids[cursor:place]
        grown += [ids[place]] * times
        cursor = place + 1
        places.append(place)
    grown += ids[cursor:]
    more = [0, *accumulate(times - 1 for _, _, times in runs)]

    def moved(index: int) -> int:
        return index + more[bisect_left(places, index)]

    return grown, [(moved(start), moved(end)) for start, end in ranges]


def token_ranges(offsets: Ranges, spans: Ranges) -> Ranges:
    """Return for each span the range of tokens that begin inside it."""
    first = itemgetter(0)
    return [(bisect_left(offsets, s, key=first), bisect_left(offsets, e, key=first)) for s, e in spans]


def within_range(ids: Ids, ranges: Ranges, token_range: tuple[int, int] | None) -> tuple[Ids, Ranges]:
    """Return the ids within a range of tokens, and of each range what lies in it, perhaps nothing; None: all."""
    if token_range is None:
        return ids, ranges
    start, end = token_range
    return ids[start:end], [(max(first, start) - start, max(min(last, end), start) - start) for first, last in ranges]


def without_first(ranges: Ranges, weights: Sequence[float] = ()) -> tuple[Ranges, list[float]]:
    """Return ranges without the first token, which nothing predicts, and their weights; empty: all are 1."""
    pairs = zip(ranges, weights or repeat(1.0, len(ranges)), strict=True)
    left = [((max(start, 1), end), weight) for (start, end), weight in pairs if end > max(start, 1)]
    kept = [weight for _, weight in left]
    return [of for of, _ in left], kept if any(weight != 1 for weight in kept) else []


def _is_plain(token: AddedToken) -> bool:
    return not (token.lstrip or token.rstrip or token.single_word or token.normalized)


def _cuts(spans: Ranges, runs: Ranges) -> bool:
    """Say whether an end of a span lies within a run; both ascend."""
    starts = [start for start, _ in runs]
    for position in (end for span in spans for end in span):
        index = bisect_left(starts, position) - 1
        if index >= 0 and position < runs[index][1]:
            return True
    return False
