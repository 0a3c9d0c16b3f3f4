"""How many tokens a text has, without making them.

A byte-level BPE tokenizer first cuts a text at its added tokens, then by a regular expression into words, and a word
becomes the same tokens wherever it stands. So words are counted once and looked up afterwards, and a run of one added
token (an image's) is counted by its length. The reference is `tokenizers`: it is asked for each new word, and for a
whole text wherever this module is not sure: characters on which Unicode tables of different age may differ, text that
is not in NFC, and spans that begin within a word.

An optional engine (gigatoken, fastokens) counts a text's parts at once; it is compared with the reference on `HOSTILE`
before it is used.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import import_module
from itertools import chain, pairwise
from typing import Any

import regex
from tokenizers import Tokenizer, pre_tokenizers

Spans = Sequence[tuple[int, int]]

_GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_MOST_WORDS = 500_000  # about 100 MB; then a dictionary starts again
_SHORT = 40  # characters; texts between added tokens up to this are remembered whole
_FAR_BACK = 60  # characters from the first of a span back to an added token
_RUNS = re.compile(r"(<[^<>\[\]]+>|\[[^<>\[\]]+\])\1+")
_EMOJI = range(0x1F000, 0x1FB00)  # symbols in every table, or not yet in it: never letters, numbers or spaces

#: Texts on which tokenizers have been seen to differ.
HOSTILE = [
    *("a'\u017f", "\u017f't", "\u212a's", "don't DON'T doN't", "x'Re", "'", "''s", " 's"),
    *("a  b", "a   ", "   a", "\n\n  \n x", "\r\n\r\n", "a \r\n\tb", "\u00a0a\u2003b", "\u3000全角"),
    *("e\u0301", "é", "\u0301", "각", "\u1100\u1161\u11a8", "ﬁ", "Å", "①②", "٣٤٥", "१२३", "1234567", "3.14e-10", "½²³"),
    *("日本語のテキスト", "你好\uff0c世界。", "สวัสดี", "العربية", "עברית", "हिन्दी", "\u208f\u209d", "\u200bzero\u200d"),
    *("🙂🙂", "👩\u200d👩\u200d👧", "🇩🇪", "\U0001f9ff", "\U0010fffd", "\x00\x01\x7f", "\ufffd", "\ufeffx", "\ud7ff"),
    *("a" * 300, " " * 300, "ab" * 200, "\t\t\tdef f(x):\n\t\treturn x['a']", "</s>", "<|im_end", "im_end|>"),
    *("<|im_start|>user\n", "<|im_end|><|im_end|>", "[[]][][]", "<><><>"),
]


class CountingError(ValueError):
    """An engine that was asked for by name can't be used."""


class TokenCounter:
    """Counts tokens, and those in given spans, for one tokenizer."""

    def __init__(self, tokenizer: Tokenizer, engine: str = "auto"):
        """Read the tokenizer and choose an engine.

        Args:
            engine: `auto` (the fastest that is installed), `words`, `gigatoken`, `fastokens`, or `tokenizers`, which
                counts nothing here.

        Raises:
            CountingError: an engine that is asked for by name is not installed, or not right for this tokenizer.
        """
        settings = json.loads(tokenizer.to_str())
        pattern = _word_pattern(settings)
        self.engine = "tokenizers"
        if pattern is None or engine == "tokenizers":
            if engine in _FAST:
                raise CountingError(f"measure.engine={engine} is for byte-level BPE, which this tokenizer is not")
            return
        added = sorted((token["content"] for token in settings["added_tokens"]), key=len, reverse=True)
        self._pattern = pattern
        self._added = re.compile("|".join(map(re.escape, added)) or "(?!)")
        self._added_ends = tuple(added)
        self._added_tokens = frozenset(added)
        self._normalizes = settings["normalizer"] is not None
        self._doubtful = _doubtful()
        words = _Words(tokenizer, pattern, added)
        self.engine, self._counts = _choose(tokenizer, engine, words)

    def count(self, texts: Sequence[tuple[str, Spans]]) -> list[tuple[int, int] | None]:
        """Tokens of each text, and those that begin in its spans, but for a text's first; None: ask the reference.

        Args:
            texts: each with its spans, ascending ranges of characters.
        """
        if self.engine == "tokenizers":
            return [None] * len(texts)
        cuts = [self._cuts(text, spans) for text, spans in texts]
        parts = [
            [text[start:end] for start, end in pairwise(cut)] for cut, (text, _) in zip(cuts, texts, strict=True) if cut
        ]
        flat = [self._without_runs(part) for part in chain.from_iterable(parts)]
        counted = self._counts([part for part, _ in flat])
        counts = (number + more for number, (_, more) in zip(counted, flat, strict=True))
        results: list[tuple[int, int] | None] = []
        for cut in cuts:
            if cut is None:
                results.append(None)
                continue
            numbers = [next(counts) for _ in range(len(cut) - 1)]
            is_first = len(cut) > 2 and cut[1] == 0 and numbers[1] > 0
            results.append((sum(numbers), sum(numbers[1::2]) - is_first))
        return results

    def _without_runs(self, text: str) -> tuple[str, int]:
        """A text with runs of an added token (of an image's, say) as one, and how many tokens that leaves out."""
        if "><" not in text and "][" not in text:
            return text, 0
        more = 0

        def once(run: "re.Match[str]") -> str:
            nonlocal more
            if run[1] not in self._added_tokens:
                return run[0]
            more += len(run[0]) // len(run[1]) - 1
            return run[1]

        return _RUNS.sub(once, text), more

    def _cuts(self, text: str, spans: Spans) -> list[int] | None:
        """Where to cut a text so that every second part is a span."""
        if not text.isascii() and (
            self._doubtful.search(text) or (self._normalizes and not unicodedata.is_normalized("NFC", text))
        ):
            return None
        cuts = [0]
        for span in spans:
            if not all(self._is_between_words(text, position) for position in span):
                return None
            cuts += span
        return [*cuts, len(text)]

    def _is_between_words(self, text: str, position: int) -> bool:
        """Whether a tokenizer cuts a text there in any case: at an added token, or where a word ends."""
        if position in (0, len(text)) or text.endswith(self._added_ends, 0, position):
            return True
        begin = max(0, position - _FAR_BACK)
        word, limit = 0 if begin == 0 else -1, len(text)  # between the last added token and the next
        for match in self._added.finditer(text, begin):
            if match.end() > position:
                if match.start() < position:
                    return False
                limit = match.start()
                break
            word = match.end()
        while 0 <= word < position:
            found, if_cut = self._pattern.match(text, word, limit), self._pattern.match(text, word, position)
            if found is None or if_cut is None or found.end() != if_cut.end():
                return False  # what follows decides how long a run of spaces is a word
            word = found.end()
        return word == position


class _Words:
    """Counts tokens with a dictionary of the tokens of words."""

    def __init__(self, tokenizer: Tokenizer, pattern: "regex.Pattern[str]", added: Sequence[str]):
        self._split = re.compile(f"({'|'.join(map(re.escape, added)) or '(?!)'})").split
        self._find = pattern.findall
        self._tokenize = tokenizer.model.tokenize
        self._as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str
        self._of_word: dict[str, int] = {}
        self._of_short: dict[str, int] = {}

    def __call__(self, texts: list[str]) -> list[int]:
        return [self._count(text) for text in texts]

    def _count(self, text: str) -> int:
        between = self._split(text)
        number = len(between) // 2
        for plain in between[::2]:
            if len(plain) > _SHORT:
                number += self._count_words(plain)
            elif plain:
                found = self._of_short.get(plain)
                if found is None:
                    found = _remember(self._of_short, plain, self._count_words(plain))
                number += found
        return number

    def _count_words(self, text: str) -> int:
        words = self._find(text)
        known = self._of_word
        try:
            return sum([known[word] for word in words])
        except KeyError:
            for word in words:
                if word not in known:
                    _remember(known, word, len(self._tokenize(self._as_bytes(word)[0][0])))
            return sum(known[word] for word in words)


def _remember(known: dict[str, int], text: str, number: int) -> int:
    if len(known) > _MOST_WORDS:
        known.clear()
    known[text] = number
    return number


def _word_pattern(settings: dict[str, Any]) -> "regex.Pattern[str] | None":
    """What cuts a text into words; None for tokenizers that are not known to be counted by words."""
    model, normalizer, cutter = settings["model"], settings["normalizer"], settings["pre_tokenizer"] or {}
    affixes = [model.get(name) for name in ("continuing_subword_prefix", "end_of_word_suffix", "dropout")]
    if model["type"] != "BPE" or any(affixes) or model.get("byte_fallback"):
        return None
    if normalizer is not None and normalizer["type"] != "NFC":
        return None
    flags = ("single_word", "lstrip", "rstrip", "normalized")
    if any(token[flag] for token in settings["added_tokens"] for flag in flags):
        return None
    steps = cutter["pretokenizers"] if cutter.get("type") == "Sequence" else [cutter]
    if not steps or steps[-1].get("type") != "ByteLevel" or steps[-1]["add_prefix_space"]:
        return None
    if len(steps) == 1 and steps[0]["use_regex"]:
        source = _GPT2_PATTERN
    elif len(steps) == 2 and steps[0]["type"] == "Split" and not steps[1]["use_regex"]:
        if steps[0]["behavior"] != "Isolated" or steps[0]["invert"] or "Regex" not in steps[0]["pattern"]:
            return None
        source = steps[0]["pattern"]["Regex"]
    else:
        return None
    try:
        pattern = regex.compile(source, regex.V1)
    except regex.error:
        return None
    # All of a text has to be in words: what lies between two would be a word of its own.
    whole = all("".join(pattern.findall(text)) == text for text in HOSTILE)
    return pattern if whole and pattern.groups == 0 else None


@lru_cache(maxsize=1)
def _doubtful() -> "re.Pattern[str]":
    """Characters that may be letters to one table and nothing to another: those younger than Unicode 3.2.

    That table comes with Python, so the answer is the same everywhere. Two old ones are doubted, too: they are the
    lower case of another letter's in contractions, to some.
    """
    category = unicodedata.ucd_3_2_0.category
    safe = [c for c in range(0x20000) if c in _EMOJI or category(chr(c)) != "Cn"]
    starts = [c for c, before in zip(safe, [-2, *safe], strict=False) if c != before + 1]
    ends = [c for c, after in zip(safe, [*safe[1:], 0x110000], strict=True) if c + 1 != after]
    ranges = "".join(f"\\U{start:08x}-\\U{end:08x}" for start, end in zip(starts, ends, strict=True))
    cjk = "\\U00020000-\\U0002a6d6"  # the letters of Extension B, as old
    return re.compile(f"[^{ranges}{cjk}]|[\u017f\u212a]")


def _gigatoken(tokenizer: Tokenizer) -> Callable[[str], int]:
    encode = import_module("gigatoken").Tokenizer(tokenizer).encode
    return lambda text: len(encode(text))


def _fastokens(tokenizer: Tokenizer) -> Callable[[str], int]:
    encode = import_module("fastokens").Tokenizer.from_json_str(tokenizer.to_str()).encode
    return lambda text: len(encode(text))


_FAST = {"gigatoken": _gigatoken, "fastokens": _fastokens}  # the fastest first


def _choose(tokenizer: Tokenizer, engine: str, words: _Words) -> tuple[str, Callable[[list[str]], list[int]]]:
    for name in _FAST if engine == "auto" else [engine] if engine in _FAST else []:
        try:
            count = _FAST[name](tokenizer)
            wrong = _first_wrong(tokenizer, count)
        except ImportError:
            wrong = f"it is not installed: pip install {name}"
        except Exception as error:  # an engine refuses what it does not cover in its own ways
            wrong = str(error)
        if wrong is None:
            return name, _each(count)
        if engine != "auto":
            raise CountingError(f"measure.engine={name}: {wrong}")
    return "words", words


def _each(count: Callable[[str], int]) -> Callable[[list[str]], list[int]]:
    return lambda texts: [count(text) for text in texts]


def _first_wrong(tokenizer: Tokenizer, count: Callable[[str], int]) -> str | None:
    doubtful = _doubtful()
    for text in HOSTILE:
        expected = len(tokenizer.encode(text, add_special_tokens=False).ids)
        if doubtful.search(text) is None and count(text) != expected:
            return f"it counts {count(text)} tokens in {text!r}, the reference {expected}"
    return None
