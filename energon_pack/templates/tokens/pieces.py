"""Count a long text by the reference, a piece at a time.

`tokenizers` takes 400 to 700 bytes for each token that it makes: 6 MB of one record took 2.6 GB. A text is cut where
tokenizers of bytes end a word; before any text is cut, the tokenizer is checked for this.
"""

import re
from collections.abc import Iterator
from itertools import product

from tokenizers import Tokenizer

from energon_pack.templates.tokens.added import AddedTokens, Ranges, token_ranges

#: approximate characters of a text that is cut, and of its pieces
LONG = 100_000
#: seams: before a space between letters, and after the end of a line
_SEAM = re.compile(r"(?<=[a-zA-Z])(?= [a-zA-Z])|(?<=\n)(?=[a-zA-Z\u4e00-\u9fa5])")
#: texts that may stand beside a seam: each kind of character, also those on which Unicode tables differ
_BESIDE = ["", *"aZ1 '.-_<[\n\r\t\u00a0", "你", "é", "e\u0301", "\u017f", "\u0e33", "🙂", "'s", "  ", "\n\n", "12"]
_SEAMS = [("a", " b"), ("Z", " a"), ("\n", "a"), ("\n", "Z"), ("\n", "你")]


class Pieces:
    """Counts long texts for one tokenizer."""

    def __init__(self, tokenizer: Tokenizer, added: AddedTokens):
        self._tokenizer, self._added = tokenizer, added
        self._ends_words: bool | None = None  # whether words end at every seam; None: not checked yet

    def count(self, text: str, spans: Ranges) -> tuple[int, int] | None:
        """Count the tokens of a text, and those that begin in its spans, except the text's first.

        Returns:
            The two counts; None: the text is not long, or can't be cut.
        """
        if len(text) <= LONG or not self._may_cut():
            return None
        num_tokens = num_within = 0
        for start, end in pieces(text):
            encoding = self._tokenizer.encode(text[start:end], add_special_tokens=False)
            near = [(max(s, start) - start, min(e, end) - start) for s, e in spans if s < end and e > start]
            ranges = token_ranges(encoding.offsets, near)
            num_tokens += len(encoding.ids)
            num_within += sum(last - first for first, last in ranges)
            if start == 0 and ranges and ranges[0][0] == 0 < ranges[0][1]:
                num_within -= 1
        return num_tokens, num_within

    def _may_cut(self) -> bool:
        if self._ends_words is None:
            around = ["<", "["], [">", "]"]
            framed = all(token[0] in around[0] and token[-1] in around[1] for token in self._added.all)
            self._ends_words = framed and not any(map(_SEAM.search, self._added.all)) and self._are_ends()
        return self._ends_words

    def _are_ends(self) -> bool:
        """Say whether this tokenizer ends a word at each kind of seam, whatever stands beside it."""
        cut = self._tokenizer.pre_tokenizer
        return cut is not None and all(
            any(start == len(before) for _, (start, _) in cut.pre_tokenize_str(before + after))
            for (left, right), first, last in product(_SEAMS, _BESIDE, _BESIDE)
            for before, after in [(first + left, right + last)]
        )


def pieces(text: str) -> Iterator[tuple[int, int]]:
    """Yield where the pieces of a text begin and end: each ends at the first seam after `LONG` characters."""
    start = 0
    while start < len(text):
        found = _SEAM.search(text, start + LONG)
        end = found.start() if found else len(text)
        yield start, end
        start = end
