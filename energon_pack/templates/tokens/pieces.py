"""Cut a text at the added tokens of a tokenizer, such as `<|im_start|>`, and make tokens of the words between them.

`TokenRunShortener` shows the tokenizer one token in the place of thousands in a row, as those for visual features are.

`WordTokenizer` keeps several ids as a string of as many characters, whose code points they are: Python joins strings
faster than lists, and holds them in less memory.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate, repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import regex
from tokenizers import AddedToken, Tokenizer

Ids = npt.NDArray[np.int64]
Ranges = list[tuple[int, int]]
#: where the first token of a run ends in the text without runs, and how many more of it come
TokenRun = tuple[int, int]


class AddedTokenFinder:
    """Finds added tokens, such as `<|im_end|>`, in texts: the leftmost, then the longest, as tokenizers do."""

    def __init__(self, tokens: Collection[str]):
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


class TokenRunShortener:
    """Shortens runs of one added token, such as thousands of image tokens, before a text is tokenized."""

    def __init__(self, tokenizer: Tokenizer, tokens: Iterable[str]):
        added = {token.content: token for token in tokenizer.get_added_tokens_decoder().values()}
        known = AddedTokenFinder(added)
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


_GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_MAX_WORDS = 500_000  # words in a dictionary, about 100 MB; then it starts again
_VISIBLE_BYTES = {*range(33, 127), *range(161, 173), *range(174, 256)}
#: how a byte-level BPE writes the bytes that are no visible characters of Latin-1 (GPT-2's encoder)
_CODE_POINT_OF_BYTE = {
    byte: 256 + number for number, byte in enumerate(byte for byte in range(256) if byte not in _VISIBLE_BYTES)
}
#: the ASCII characters in classes of Unicode
_ASCII_OF_CLASS = {
    "L": "a-zA-Z",
    "Lu": "A-Z",
    "Ll": "a-z",
    "N": "0-9",
    "Nd": "0-9",
    **dict.fromkeys(("Lt", "Lm", "Lo", "M", "Mn", "Mc", "Me", "Nl", "No", "Han"), r"\x80"),  # nothing
}
_UNICODE_CLASS = re.compile(r"\\p\{(\w+)\}")
#: nested sets and the like, which are not supported
_UNSUPPORTED = re.compile(r"&&|--|\|\||~~|\\[P\[\]]|\[[^\]]*\[")

#: texts on which tokenizers were seen to differ
HOSTILE_TEXTS = [
    *("a'\u017f", "\u017f't", "\u212a's", "don't DON'T doN't", "x'Re", "'", "''s", " 's"),
    *("a  b", "a   ", "   a", "\n\n  \n x", "\r\n\r\n", "a \r\n\tb", "\u00a0a\u2003b", "\u3000全角"),
    *("e\u0301", "é", "\u0301", "각", "\u1100\u1161\u11a8", "ﬁ", "Å", "①②", "٣٤٥", "१२३", "1234567", "3.14e-10", "½²³"),
    *("日本語のテキスト", "你好\uff0c世界。", "สวัสดี", "العربية", "עברית", "हिन्दी", "\u208f\u209d", "\u200bzero\u200d"),
    *("🙂🙂", "👩\u200d👩\u200d👧", "🇩🇪", "\U0001f9ff", "\U0010fffd", "\x00\x01\x7f", "\ufffd", "\ufeffx", "\ud7ff"),
    *("a" * 300, " " * 300, "ab" * 200, "\t\t\tdef f(x):\n\t\treturn x['a']", "</s>", "<|im_end", "im_end|>"),
    *("<|im_start|>user\n", "<|im_end|><|im_end|>", "[[]][][]", "<><><>"),
]


class _WordIdCache(dict[str, str]):
    """Caches the token ids of words, as strings; a new word is tokenized when it is looked up."""

    def __init__(self, tokenizer: Tokenizer):
        super().__init__()
        self._tokenize = tokenizer.model.tokenize

    def __missing__(self, word: str) -> str:
        if len(self) > _MAX_WORDS:
            self.clear()
        as_bytes = word.encode().decode("latin-1").translate(_CODE_POINT_OF_BYTE)
        ids = self[word] = "".join([chr(token.id) for token in self._tokenize(as_bytes)])
        return ids


class WordTokenizer:
    """Tokenizes texts word by word, with a cache of the ids of words."""

    def __init__(self, tokenizer: Tokenizer, pattern: "regex.Pattern[str]", added: AddedTokenFinder):
        self._split = re.compile(f"({added.source})").split
        self._find = pattern.findall
        in_ascii = ascii_pattern(pattern)
        self._find_in_ascii = in_ascii.findall if in_ascii is not None else self._find
        self._of_token = {
            token: chr(number) for token in added.all if (number := tokenizer.token_to_id(token)) is not None
        }
        self._of_word = _WordIdCache(tokenizer)

    def encode(self, texts: list[str]) -> tuple[npt.NDArray[np.uint32], list[int]]:
        """Return the ids of all texts in one array, and the number of ids of each text."""
        each = [*map(self._ids, texts)]
        ids = np.frombuffer("".join(each).encode("utf-32-le", "surrogatepass"), "<u4")
        return ids, [*map(len, each)]

    def _ids(self, text: str) -> str:
        between = self._split(text)
        ids = [self._of_token[token] for token in between[1::2]]
        plain_ids = [self._ids_of_words(plain) for plain in between[::2]]
        return "".join([each for pair in zip(plain_ids, ids, strict=False) for each in pair]) + plain_ids[-1]

    def _ids_of_words(self, text: str) -> str:
        words = self._find_in_ascii(text) if text.isascii() else self._find(text)
        return "".join(map(self._of_word.__getitem__, words))


def word_pattern(settings: dict[str, Any]) -> "regex.Pattern[str] | None":
    """Return the regular expression by which a byte-level BPE tokenizer cuts texts into words.

    Args:
        settings: the tokenizer's JSON.

    Returns:
        None if the tokens of a word depend on more than the word, or the expression is not understood.
    """
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
    # All of a text has to be in words: text between two words would be a word of its own.
    whole = all("".join(pattern.findall(text)) == text for text in HOSTILE_TEXTS)
    return pattern if whole and pattern.groups == 0 else None


def ascii_pattern(pattern: "regex.Pattern[str]") -> "re.Pattern[str] | None":
    """Return a pattern of Python's `re` with the same words in ASCII texts, twice as fast; None: there is none."""
    source = pattern.pattern
    if _UNSUPPORTED.search(source) or not _ASCII_OF_CLASS.keys() >= set(_UNICODE_CLASS.findall(source)):
        return None

    def ranges(match: "re.Match[str]") -> str:
        is_in_set = source.rfind("[", 0, match.start()) > source.rfind("]", 0, match.start())
        return _ASCII_OF_CLASS[match[1]] if is_in_set else f"[{_ASCII_OF_CLASS[match[1]]}]"

    try:
        in_ascii = re.compile(_UNICODE_CLASS.sub(ranges, source), re.ASCII)
    except re.error:
        return None
    # Test every character next to every kind of character.
    beside = "aAsS1 '.\n\r\t\x1c"
    text = "".join(f"a{c}{d}a 1{d}{c}1.{c}{d}.  {d}{c}\n" for c in map(chr, range(128)) for d in beside)
    return in_ascii if in_ascii.findall(text) == pattern.findall(text) else None
