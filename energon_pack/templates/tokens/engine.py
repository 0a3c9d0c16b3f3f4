"""Make the tokens of a text.

A byte-level BPE tokenizer first cuts a text at its added tokens, then by a regular expression into words, and a word
becomes the same tokens wherever it stands. So words are tokenized once and looked up afterwards. The reference is
`tokenizers`: it is given each new word, and the whole text if this module is not sure: for characters on which Unicode
tables of different age may differ, for text that is not in NFC, and for spans that begin within a word.

If gigatoken is installed, it takes a text's parts at once; it is compared with the reference on `HOSTILE_TEXTS` before
it is used. Setting it up takes as long as counting some million characters without it, so few texts never need it.
"""

import json
import math
import sys
import unicodedata
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, models

from energon_pack.templates.tokens.pieces import HOSTILE_TEXTS, AddedTokenFinder, Ids, WordTokenizer, word_pattern

#: a text, and ascending positions in it
TextWithPositions = tuple[str, Sequence[int]]
#: makes the ids of several texts, one behind the other, and counts those of each
BatchEncoder = Callable[[list[str]], tuple[npt.NDArray[np.uint32], list[int]]]

#: the engine `auto` where at least so many bytes of texts are to come: from the start it pays
MANY_TEXTS, MANY_TEXTS_BYTES = "many", 5_000_000
_MAX_LOOKBACK = 60  # most characters from the start of a span back to an added token
_MIN_GIGATOKEN_CHARACTERS = 15_000_000  # characters: with words as many take 0.7 s, and setting it up 0.6 s

_EMOJI = range(0x1F000, 0x1FB00)  # symbols, or unassigned in old tables: never letters, numbers or spaces
_CJK = range(0x20000, 0x2A6D7)  # letters of Extension B, which old tables have, too
_LOWER_CASE_OF_OTHERS = "\u017f\u212a"  # some tokenizers match these in contractions


class TokenEngineError(ValueError):
    """The engine that `measure.engine` names can't be used for this tokenizer."""


class TokenEngine:
    """Makes the tokens of texts like a tokenizer of the package `tokenizers`, but faster; None for uncertain texts."""

    def __init__(self, tokenizer: Tokenizer, engine: str = "auto"):
        """Read the tokenizer's settings and choose an engine.

        Args:
            engine: `words`; `gigatoken`; `auto`, words first and, after many texts, gigatoken if it is installed;
                `MANY_TEXTS`, as `auto` where many texts are to come; or `tokenizers`, which leaves all texts to the
                tokenizer.
        """
        settings = _settings_of(tokenizer)
        pattern = word_pattern(settings)
        self.engine = "tokenizers"
        if pattern is None or engine == "tokenizers" or tokenizer.get_vocab_size() > sys.maxunicode:
            if engine == "gigatoken":
                raise TokenEngineError(f"measure.engine={engine} is for byte-level BPE, which this tokenizer is not")
            return
        self._pattern = pattern
        self._added = AddedTokenFinder([token["content"] for token in settings["added_tokens"]])
        self._normalizes = settings["normalizer"] is not None
        self.engine, self._characters_to_engine = "words", math.inf
        if engine == "gigatoken":
            self._use_gigatoken(tokenizer)
            return
        self._encode: BatchEncoder = WordTokenizer(tokenizer, pattern, self._added).encode
        if engine in ("auto", MANY_TEXTS):
            self._tokenizer, self._characters_to_engine = tokenizer, _MIN_GIGATOKEN_CHARACTERS * (engine == "auto")

    def tokens(self, texts: Sequence[TextWithPositions]) -> list[tuple[Ids, list[int]] | None]:
        """Return the ids of each text, and how many tokens begin before each given position; None: not certain."""
        if self.engine == "tokenizers":
            return [None] * len(texts)
        pieces: list[str] = []
        nums: list[int] = []  # pieces of each text; 0: the reference is asked
        unsure = self._uncertain_texts([text for text, _ in texts])
        for number, (text, positions) in enumerate(texts):
            before = len(pieces)
            if number not in unsure and all(self._is_between_words(text, position) for position in positions):
                pieces += [text[start:end] for start, end in pairwise((0, *positions, len(text)))]
            nums.append(len(pieces) - before)
        self._characters_to_engine -= sum(map(len, pieces))
        if self._characters_to_engine < 0:
            self._try_gigatoken()
        new, lens = self._encode(pieces) if pieces else (np.zeros(0, np.uint32), [])
        ids, ends, last = new.astype(np.int64), [0, *accumulate(lens)], 0
        results: list[tuple[Ids, list[int]] | None] = []
        for num in nums:
            first, last = last, last + num
            numbers = [end - ends[first] for end in ends[first + 1 : last]]
            results.append((ids[ends[first] : ends[last]], numbers) if num else None)
        return results

    def _try_gigatoken(self) -> None:
        """Change to gigatoken if it is installed and right for this tokenizer; else stay with words."""
        self._characters_to_engine = math.inf
        with suppress(TokenEngineError):
            self._use_gigatoken(self._tokenizer)

    def _use_gigatoken(self, tokenizer: Tokenizer) -> None:
        self._encode, self.engine = _checked_gigatoken(tokenizer), "gigatoken"

    def _uncertain_texts(self, texts: Sequence[str]) -> set[int]:
        """Return the indices of texts that only the tokenizer itself makes tokens of for sure."""
        wide = [i for i, text in enumerate(texts) if not text.isascii()]
        unsure = {wide[i] for i in find_texts_with_new_characters([texts[i] for i in wide])}
        if self._normalizes:
            unsure.update(i for i in wide if i not in unsure and not unicodedata.is_normalized("NFC", texts[i]))
        return unsure

    def _is_between_words(self, text: str, position: int) -> bool:
        """Say whether the tokenizer certainly cuts a text at this position: at an added token, or where a word ends."""
        if position in (0, len(text)) or text.endswith(self._added.all, 0, position):
            return True
        begin = max(0, position - _MAX_LOOKBACK)
        end, limit = 0 if begin == 0 else -1, len(text)
        for match in self._added.pattern.finditer(text, begin):
            if match.end() > position:
                limit = match.start()
                break
            end = match.end()
        if end < 0:
            return False  # no added token is near
        if limit < position:
            return False
        while end < position:
            word, alone = self._pattern.match(text, end, limit), self._pattern.match(text, end, position)
            if word is None or alone is None or word.end() != alone.end():
                return False  # the following text decides how many of the spaces are a word
            end = word.end()
        return True


def _settings_of(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the tokenizer's JSON without its vocabulary, which would take longer than counting a small data set."""
    empty = Tokenizer(models.BPE())
    for name in ("normalizer", "pre_tokenizer"):
        if (step := getattr(tokenizer, name)) is not None:
            setattr(empty, name, step)
    settings: dict[str, Any] = json.loads(empty.to_str())
    model = {
        name: getattr(tokenizer.model, name, value) for name, value in settings["model"].items() if name != "vocab"
    }
    flags = ("content", "single_word", "lstrip", "rstrip", "normalized")
    added = [{flag: getattr(t, flag) for flag in flags} for t in tokenizer.get_added_tokens_decoder().values()]
    return {**settings, "model": {**model, "type": type(tokenizer.model).__name__}, "added_tokens": added}


def _gigatoken_encoder(tokenizer: Tokenizer) -> BatchEncoder:
    encode_batch = import_module("gigatoken").Tokenizer(tokenizer).encode_batch

    def encode(texts: list[str]) -> tuple[npt.NDArray[np.uint32], list[int]]:
        layout = encode_batch(texts, parallel=False).layout
        return layout.content.data, np.diff(layout.offsets.data).tolist()

    return encode


def _checked_gigatoken(tokenizer: Tokenizer) -> BatchEncoder:
    """Return gigatoken's encoder, after it made the same tokens of all `HOSTILE_TEXTS` texts as the tokenizer.

    Raises:
        EngineError: it is not installed, or not right for this tokenizer.
    """
    try:
        encode = _gigatoken_encoder(tokenizer)
        wrong = _first_differing_text(tokenizer, encode)
    except ImportError:
        wrong = "it is not installed: pip install gigatoken"
    except Exception as error:  # it raises errors of its own for tokenizers that it does not support
        wrong = str(error)
    if wrong is not None:
        raise TokenEngineError(f"measure.engine=gigatoken: {wrong}")
    return encode


def _first_differing_text(tokenizer: Tokenizer, encode: BatchEncoder) -> str | None:
    left_out = find_texts_with_new_characters(HOSTILE_TEXTS)
    for text in (text for i, text in enumerate(HOSTILE_TEXTS) if i not in left_out):
        ids, expected = encode([text])[0].tolist(), tokenizer.encode(text, add_special_tokens=False).ids
        if ids != expected:
            return f"it makes {len(ids)} tokens of {text!r}: {ids[:8]}; the reference {len(expected)}: {expected[:8]}"
    return None


def find_texts_with_new_characters(texts: Sequence[str]) -> set[int]:
    """Return the indices of texts that tokenizers may cut differently: a character is newer than Unicode 3.2."""
    codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
    ends = list(accumulate(map(len, texts)))
    return set(np.searchsorted(ends, np.flatnonzero(_doubtful_code_points()[codes]), side="right").tolist())


@lru_cache(maxsize=1)
def _doubtful_code_points() -> npt.NDArray[np.bool_]:
    """Return for each code point whether it is doubtful: newer than Unicode 3.2.

    Python contains that table, so the result is the same everywhere.
    """
    category = unicodedata.ucd_3_2_0.category
    is_doubtful = np.ones(0x110000, bool)
    is_doubtful[:0x20000] = np.array([*map(category, map(chr, range(0x20000)))]) == "Cn"
    for old in (_EMOJI, _CJK):
        is_doubtful[old.start : old.stop] = False
    is_doubtful[list(map(ord, _LOWER_CASE_OF_OTHERS))] = True
    return is_doubtful
