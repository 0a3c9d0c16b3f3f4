"""A tiny tokenizer with the special tokens that a processor class asks for: the class is asked, there is no list."""

import importlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from energon_pack.templates.full_processor import prepare_torchvision

prepare_torchvision()
tf: Any = importlib.import_module("transformers")

#: what it learns its few merges from: tokens may cross the edges of what stands for a medium
_TEXTS = (
    "user: What is in this picture, and in the second one?\n",
    "assistant: Frame 1: Frame 2: at 0.5 seconds, at 1.0 seconds, 2.0 seconds\n\n\n00:01 00:02\n",
    "Describe the video. This is a video sampled at 2.0 frames per second: ",
)
_VOCABULARY = 384
#: as transformers names them; no unknown token: what is not there has to show
NAMED = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "sep_token": "<sep>", "mask_token": "<mask>"}
#: a special token in a text; a time (`<0.5 seconds>`) is none
_SPELLED = re.compile(r"<[^<>\s\d][^<>\s]*>|\[[A-Z]+(?:_[A-Z]+)*\]|TILE_(?:\d+|GLOBAL)")
_MOST_TRIES = 200


@dataclass
class Wanted:
    """Special tokens that a class wants: as attributes of the tokenizer, and others."""

    attributes: dict[str, str] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)

    def new(self, tokens: Sequence[str]) -> list[str]:
        """Those that are not there yet, once each."""
        known = {*NAMED.values(), *self.attributes.values(), *self.others}
        return list(dict.fromkeys(token for token in tokens if token not in known))


@dataclass
class Notes:
    """What a tokenizer was asked for and does not have, and the texts it was given."""

    attributes: list[str] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


def learn(wanted: Wanted, use: Callable[[Any], object]) -> Exception | None:
    """Add what is missing, one by one, until the class asks for nothing new.

    Args:
        use: makes the class with a tokenizer, and calls it.

    Returns:
        What the class raises with all tokens there.
    """
    for _ in range(_MOST_TRIES):
        notes = Notes()
        try:
            use(tokenizer(wanted, notes))
            failed: Exception | None = None
        except Exception as error:  # any class of any processor may be behind it
            failed = error
        spelled = [token for text in notes.texts for token in _SPELLED.findall(text)]
        new = wanted.new([*notes.tokens, *spelled])
        wanted.others += new
        if failed is None:
            if not new:
                return None
            continue
        missed = {re.sub(r"_ids?$", "", name): name for name in notes.attributes}
        missed = {name: asked for name, asked in missed.items() if re.fullmatch(r"[a-z_]+_token", name)}
        # One that it fails for; where it names none, all that it asked for.
        named = [name for name, asked in missed.items() if asked in str(failed)][-1:] or [] if new else list(missed)
        named = [name for name in named if name not in wanted.attributes and name not in NAMED]
        wanted.attributes |= {name: f"<|{name.removesuffix('_token')}|>" for name in named}
        if not new and not named:
            return failed
    raise RecursionError(f"asks for new special tokens after {_MOST_TRIES} tries")


def tokenizer(wanted: Wanted, notes: Notes | None = None) -> Any:
    """A byte-level BPE of few merges with special tokens.

    Args:
        notes: where it writes what it misses; None: it is a plain one.
    """
    made = Tokenizer.from_str(_plain())
    made.add_special_tokens(wanted.others)
    kind = tf.PreTrainedTokenizerFast if notes is None else _noting(notes)
    return kind(tokenizer_object=made, **NAMED, extra_special_tokens=dict(wanted.attributes))


@cache
def _plain() -> str:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=_VOCABULARY, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(_TEXTS, trainer)
    text: str = made.to_str()
    return text


def _noting(notes: Notes) -> Any:
    """A class of tokenizers that writes down what it misses."""
    plain = tf.PreTrainedTokenizerFast

    def get(self: Any, name: str) -> Any:
        try:
            return plain.__getattr__(self, name)
        except AttributeError:
            if "token" in name:
                notes.attributes.append(name)
            raise

    def ids(self: Any, tokens: Any) -> Any:
        found = plain.convert_tokens_to_ids(self, tokens)
        asked = [(tokens, found)] if isinstance(tokens, str) else zip(tokens, found, strict=True)
        notes.tokens += [token for token, number in asked if number is None]
        return found

    def call(self: Any, text: Any = None, *rest: Any, **settings: Any) -> Any:
        notes.texts += [text] if isinstance(text, str) else text or []
        return plain.__call__(self, text, *rest, **settings)

    def encode(self: Any, text: str, *rest: Any, **settings: Any) -> Any:
        notes.texts.append(text)
        return plain.encode(self, text, *rest, **settings)

    def vocabulary(self: Any) -> Any:
        return _Vocabulary(notes, plain.get_vocab(self))

    methods = (get, ids, call, encode, vocabulary)
    names = ("__getattr__", "convert_tokens_to_ids", "__call__", "encode", "get_vocab")
    return type("Noting", (plain,), dict(zip(names, methods, strict=True)))


class _Vocabulary(dict[str, int]):
    """Writes down what is not there."""

    def __init__(self, notes: Notes, tokens: dict[str, int]):
        super().__init__(tokens)
        self.notes = notes

    def __missing__(self, token: str) -> int:
        self.notes.tokens.append(token)
        raise KeyError(token)
