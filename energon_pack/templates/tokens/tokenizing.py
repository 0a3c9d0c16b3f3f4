"""Make and count the tokens of rendered texts, and say where a text may be cut.

`tokenizers` takes 400 to 700 bytes for each token that it makes: 6 MB of one record took 2.6 GB. So it is given a long
text a piece at a time, cut where tokenizers of bytes end a word; the tokenizer is checked for this before.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain, product

import numpy as np
from tokenizers import Tokenizer

from energon_pack.errors import PackError
from energon_pack.templates.sample import Rendered, Tokens
from energon_pack.templates.tokens.engine import TokenEngine
from energon_pack.templates.tokens.pieces import (
    Ids,
    Ranges,
    TokenRunShortener,
    cut_to_range,
    expand_runs,
    ranges_without_first_token,
)

#: approximate characters of a text that is cut, and of its pieces
LONG_TEXT_CHARACTERS = 100_000
#: seams: before a space between letters, and after the end of a line
_SEAM_PATTERN = re.compile(r"(?<=[a-zA-Z])(?= [a-zA-Z])|(?<=\n)(?=[a-zA-Z\u4e00-\u9fa5])")
#: texts that may stand beside a seam: each kind of character, also those on which Unicode tables differ
_BESIDE_SEAM = ["", *"aZ1 '.-_<[\n\r\t\u00a0", "你", "é", "e\u0301", "\u017f", "\u0e33", "🙂", "'s", "  ", "\n\n", "12"]
_EXAMPLE_SEAMS = [("a", " b"), ("Z", " a"), ("\n", "a"), ("\n", "Z"), ("\n", "你")]


class Tokenizing:
    """Makes and counts the tokens of rendered texts with one tokenizer."""

    def __init__(self, tokenizer: Tokenizer, adds_special_tokens: bool, in_runs: Iterable[str]):
        """Take a tokenizer, and turn off its truncation and padding.

        Args:
            adds_special_tokens: whether it adds its own around a text.
            in_runs: tokens that come in runs of thousands, such as those of images.
        """
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer, self._adds_special_tokens = tokenizer, adds_special_tokens
        self._engines: dict[str, TokenEngine] = {}
        self._runs = TokenRunShortener(tokenizer, in_runs)

    def ids_of(self, text: str) -> list[int]:
        """Return the ids of a text, without special tokens around it."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def tokenize(self, rendered: Sequence[Rendered]) -> list[Tokens]:
        """Return the ids and trained ranges of texts; the first token of a text is never trained."""
        trained = self.trained_tokens(rendered, "tokenizers")
        return [Tokens(ids.tolist(), ranges, weights) for ids, ranges, weights in trained]

    def count(self, rendered: Sequence[Rendered], engine: str = "auto") -> list[tuple[int, int]]:
        """Return for each text the numbers of its tokens and of its trained tokens."""
        trained = self.trained_tokens(rendered, engine)
        return [(len(ids), sum(end - start for start, end in ranges)) for ids, ranges, _ in trained]

    def trained_tokens(
        self, rendered: Sequence[Rendered], engine: str
    ) -> Iterator[tuple[Ids, Ranges, Sequence[float]]]:
        """Yield the ids of each text, its trained token ranges without the first token of all, and their loss weights.

        Args:
            engine: what makes the tokens: `auto`, `words`, `gigatoken` or `tokenizers` (`measure.engine`).
        """
        located = self.located([(item.text, item.spans) for item in rendered], engine)
        for item, (ids, ranges) in zip(rendered, located, strict=True):
            sample_ids, within = cut_to_range(ids, ranges, item.token_range)
            yield sample_ids, *ranges_without_first_token(within, item.weights)

    def located(self, texts: Sequence[tuple[str, Ranges]], engine: str = "tokenizers") -> list[tuple[Ids, Ranges]]:
        """Return the ids of each text, and for each of its spans of characters the range of tokens that begin in it."""
        squeezed = [self._runs.squeeze(text, spans) for text, spans in texts]
        asked = [
            (text, sorted({*chain.from_iterable(spans), *(end for end, _ in runs)})) for text, spans, runs in squeezed
        ]
        results = []
        for text, tokens, (_, spans, runs) in zip(asked, self.engine(engine).tokens(asked), squeezed, strict=True):
            ids, numbers = tokens or self._by_tokenizers(*text)
            results.append(expand_runs(ids, dict(zip(text[1], numbers, strict=True)), spans, runs))
        return results

    def _by_tokenizers(self, text: str, positions: Sequence[int]) -> tuple[Ids, list[int]]:
        """Return the ids of a text, and the number of tokens that begin before each position."""
        ids: list[int] = []
        numbers = [0] * len(positions)
        is_cut = len(text) > LONG_TEXT_CHARACTERS and self._may_cut_at_seams
        for start, end in text_piece_ranges(text) if is_cut else [(0, len(text))]:
            encoding = self._tokenizer.encode(text[start:end], add_special_tokens=self._adds_special_tokens)
            ids += encoding.ids
            begins = [begin + start for begin, _ in encoding.offsets]
            numbers = [num + bisect_left(begins, position) for num, position in zip(numbers, positions, strict=True)]
        return np.array(ids, np.int64), numbers

    @cached_property
    def _may_cut_at_seams(self) -> bool:
        """Whether the tokenizer ends a word at each kind of seam, whatever is beside it: then long texts may be cut."""
        cut, added = self._tokenizer.pre_tokenizer, self._tokenizer.get_added_tokens_decoder().values()
        may_cut = all(token.content[0] in "<[" and token.content[-1] in ">]" for token in added)
        if cut is None or not may_cut or self._adds_special_tokens:
            return False
        return not any(_SEAM_PATTERN.search(token.content) for token in added) and all(
            any(start == len(before) for _, (start, _) in cut.pre_tokenize_str(before + after))
            for (head, tail), first, last in product(_EXAMPLE_SEAMS, _BESIDE_SEAM, _BESIDE_SEAM)
            for before, after in [(first + head, tail + last)]
        )

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Return the ids of all special tokens."""
        return frozenset(i for i, token in self._tokenizer.get_added_tokens_decoder().items() if token.special)

    @property
    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer of the package `tokenizers`; callers must not change it."""
        return self._tokenizer

    def token_id(self, token: str) -> int | None:
        """Return the id of a token; None: there is no such token."""
        return self._tokenizer.token_to_id(token)

    def refuse_unknown_end(self, token: str, where: str) -> None:
        """Raise PackError if `labels.final_end` names a token that the tokenizer lacks, or joins to the text before it.

        Args:
            token: the token that it names; empty: it names none.
            where: where the tokenizer is, for the error.
        """
        if token and token not in {added.content for added in self._tokenizer.get_added_tokens_decoder().values()}:
            problem = f"labels.final_end={token}: the tokenizer {where} has no such token"
            if self.token_id(token) is not None:
                problem = f"labels.final_end={token}: the tokenizer {where} may join it to the text before it"
            raise PackError(f"{problem}; auto finds one, none adds none")

    @property
    def vocabulary_size(self) -> int:
        """Return the number of tokens of the tokenizer; a model's own table may be larger."""
        return self._tokenizer.get_vocab_size()

    def token_ends(self, text: str) -> list[int]:
        """Return where a text may be cut: the character positions at which its tokens end, ascending."""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return sorted({end for _, end in encoding.offsets if end})

    def token_places(self, text: str) -> list[tuple[int, int]]:
        """Return the start and end, in characters, of each token of a text."""
        encoding = self._tokenizer.encode(text, add_special_tokens=self._adds_special_tokens)
        return [*encoding.offsets]

    def engine(self, name: str) -> TokenEngine:
        """Return the token engine of this name (`measure.engine`), made at the first call."""
        if self._adds_special_tokens:
            name = "tokenizers"
        if name not in self._engines:
            self._engines[name] = TokenEngine(self._tokenizer, name)
        return self._engines[name]


def text_piece_ranges(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of the pieces of a long text; each ends at the first seam after 100,000 characters."""
    start = 0
    while start < len(text):
        seam = _SEAM_PATTERN.search(text, start + LONG_TEXT_CHARACTERS)
        end = seam.start() if seam else len(text)
        yield start, end
        start = end
