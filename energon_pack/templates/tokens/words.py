"""Make the tokens of a byte-level BPE by its words, each tokenized once and looked up afterwards.

Several ids are a string of as many characters, whose code points they are: Python joins strings faster than lists, and
holds them in less memory.
"""

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import regex
from tokenizers import Tokenizer

from energon_pack.templates.tokens.added import AddedTokens

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

    def __init__(self, tokenizer: Tokenizer, pattern: "regex.Pattern[str]", added: AddedTokens):
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
