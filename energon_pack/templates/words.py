"""Counting the tokens of a byte-level BPE by its words, each counted once and looked up afterwards."""

import re
from typing import Any

import regex
from tokenizers import Tokenizer, pre_tokenizers

from energon_pack.templates.added import AddedTokens

_GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_MOST_WORDS = 500_000  # about 100 MB; then a dictionary starts again
_SHORT = 40  # characters; texts between added tokens up to this are remembered whole

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


class WordCounter:
    """Counts tokens with a dictionary of the tokens of words."""

    def __init__(self, tokenizer: Tokenizer, pattern: "regex.Pattern[str]", added: AddedTokens):
        self._split = re.compile(f"({added.source})").split
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


def word_pattern(settings: dict[str, Any]) -> "regex.Pattern[str] | None":
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
