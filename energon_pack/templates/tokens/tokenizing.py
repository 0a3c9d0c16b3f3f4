"""Make and count the tokens of rendered texts, and say where a text may be cut."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from tokenizers import Tokenizer

from energon_pack.templates.sample import Rendered, Tokens
from energon_pack.templates.tokens.added import Ids, Ranges, Runs, grow, token_ranges, within_range, without_first
from energon_pack.templates.tokens.counter import TokenCounter


class Tokenizing:
    """Tokenizes texts for one model."""

    def __init__(self, tokenizer: Tokenizer, adds_special_tokens: bool, in_runs: Iterable[str]):
        """Take a tokenizer.

        Args:
            adds_special_tokens: whether it adds its own around a text.
            in_runs: tokens that stand in runs of thousands.
        """
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer, self._adds_special_tokens = tokenizer, adds_special_tokens
        self._counters: dict[str, TokenCounter] = {}
        self._runs = Runs(tokenizer, in_runs)

    def ids_of(self, text: str) -> list[int]:
        """Return the ids of a text alone."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def tokenize(self, rendered: Sequence[Rendered]) -> list[Tokens]:
        """Return ids and supervised ranges of texts. Their first tokens are never supervised, nor are empty ranges."""
        located = self.located([(item.text, item.spans) for item in rendered])
        return [Tokens([*ids], ranges, weights) for ids, ranges, weights in trained_tokens(rendered, located)]

    def located(self, texts: Sequence[tuple[str, Ranges]]) -> list[tuple[list[int], Ranges]]:
        """Return the ids of several texts, and for each span of characters the range of tokens that begin in it."""
        squeezed = [self._runs.squeeze(text, spans) for text, spans in texts]
        encodings = self._tokenizer.encode_batch(
            [text for text, _, _ in squeezed], add_special_tokens=self._adds_special_tokens
        )
        return [
            grow(encoding.ids, encoding.offsets, token_ranges(encoding.offsets, spans), runs)
            for encoding, (_, spans, runs) in zip(encodings, squeezed, strict=True)
        ]

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Return the ids of the tokenizer's special tokens."""
        return frozenset(i for i, token in self._tokenizer.get_added_tokens_decoder().items() if token.special)

    @property
    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer of the package `tokenizers`; callers must not change it."""
        return self._tokenizer

    def token_id(self, token: str) -> int | None:
        """Return the id of a token; None: there is no such token."""
        return self._tokenizer.token_to_id(token)

    @property
    def vocabulary_size(self) -> int:
        """Return the number of tokens of the tokenizer; a model's own table may be larger."""
        return self._tokenizer.get_vocab_size()

    def token_ends(self, text: str) -> list[int]:
        """Return where a text may be cut: the characters at which its tokens end, ascending."""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return sorted({end for _, end in encoding.offsets if end})

    def token_places(self, text: str) -> list[tuple[int, int]]:
        """Return the characters of each token of a whole text, as `tokenize` makes them."""
        encoding = self._tokenizer.encode(text, add_special_tokens=self._adds_special_tokens)
        return [*encoding.offsets]

    def count(self, rendered: Sequence[Rendered], engine: str = "auto") -> list[tuple[int, int]]:
        """Count tokens and supervised tokens of texts: the lengths of `tokenize`'s results, without making them."""
        counted = self.counter(engine).count([(item.text, item.spans) for item in rendered])
        counted = [None if item.token_range else counts for item, counts in zip(rendered, counted, strict=True)]
        unsure = [i for i, counts in enumerate(counted) if counts is None]
        tokens = dict(zip(unsure, self.tokenize([rendered[i] for i in unsure]), strict=True))
        return [(len(tokens[i].ids), tokens[i].num_supervised) if c is None else c for i, c in enumerate(counted)]

    def counter(self, engine: str) -> TokenCounter:
        """Return the token counter of this tokenizer; made once."""
        if self._adds_special_tokens:
            engine = "tokenizers"
        if engine not in self._counters:
            self._counters[engine] = TokenCounter(self._tokenizer, engine)
        return self._counters[engine]


def trained_tokens(
    rendered: Sequence[Rendered], located: Sequence[tuple[Ids, Ranges]]
) -> Iterator[tuple[Ids, Ranges, Sequence[float]]]:
    """Yield the ids of each text, its trained ranges without the first token, and their weights."""
    for item, (ids, ranges) in zip(rendered, located, strict=True):
        own, within = within_range(ids, ranges, item.token_range)
        yield own, *without_first(within, item.weights)
