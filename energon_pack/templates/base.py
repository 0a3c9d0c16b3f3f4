"""From a sample to its tokens: render the chat template, expand the media, tokenize.

    Sample ──render──► Rendered(text, supervised character spans) ──tokenize──► Tokens(ids, supervised token ranges)

One `Template` does this for measuring and for training, which is why the two lengths agree. Families of models
differ in `MediaRules` alone: what one image or video becomes in the text.
"""

import hashlib
import json
import os
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol

from tokenizers import Tokenizer

from energon_pack.media import Media
from energon_pack.sample import Message, Reason, Skip, split_content
from energon_pack.templates.chat import CLOSE, OPEN, ChatTemplate

#: Raised whenever a change in this package changes any length: old caches and packs are then told apart.
RULES_VERSION = 1


class MediaRules(Protocol):
    """What a family of models makes of a medium."""

    #: the text its chat template writes for one medium, by kind
    media_tokens: dict[str, str]
    #: the text that ends a turn and is trained with it
    end_of_turn: str
    #: all that `expand` depends on
    settings: dict[str, Any]

    def expand(self, media: Media) -> tuple[str, int]: ...


@dataclass(frozen=True)
class Sample:
    """One conversation with its media, ready to be rendered."""

    messages: list[Message]  # as `place_media` returned them
    media: list[Media]  # in the order of their placeholders
    tools: list[Any] | None = None


@dataclass(frozen=True)
class Rendered:
    """A conversation as the tokenizer will see it."""

    text: str
    spans: list[tuple[int, int]]  # supervised characters of `text`
    num_visual_tokens: int
    num_control_tokens: int  # special tokens that a message spells out itself


@dataclass(frozen=True)
class Tokens:
    """A conversation as the model will see it."""

    ids: list[int]
    supervised: list[tuple[int, int]]  # ranges of token indices

    @property
    def num_supervised(self) -> int:
        return sum(end - start for start, end in self.supervised)


@dataclass(frozen=True)
class TemplateSpec:
    """What a template is made of, beside its tokenizer: plain data, kept as JSON beside tokenizer.json."""

    family: str
    chat_template: str
    special_tokens: dict[str, str]  # handed to the chat template: bos_token, eos_token …
    chat_template_kwargs: dict[str, Any]
    image: dict[str, Any]  # settings of the image processor


class Template:
    """Renders and tokenizes samples for one model."""

    def __init__(self, spec: TemplateSpec, rules: MediaRules, tokenizer: Tokenizer):
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.spec = spec
        self.rules = rules
        self._tokenizer = tokenizer
        self._chat = ChatTemplate(spec.chat_template, {**spec.special_tokens, **spec.chat_template_kwargs})
        self._marks = _any_of([OPEN, CLOSE, *rules.media_tokens.values()])
        added = tokenizer.get_added_tokens_decoder().values()
        self._control = _any_of([token.content for token in added if token.special])

    def render(self, sample: Sample) -> Rendered:
        """The text of a sample, media expanded.

        Raises:
            Skip: `processor_error`, `bad_message`, `control_token` where a message spells the model's own media
                token, and what the family's rules raise.
        """
        messages = split_content(sample.messages, [media.kind for media in sample.media])
        marked = self._chat.render_marked(messages, sample.tools)
        waiting = {kind: [m for m in sample.media if m.kind == kind] for kind in self.rules.media_tokens}
        kinds = {token: kind for kind, token in self.rules.media_tokens.items()}

        pieces: list[str] = []
        spans: list[tuple[int, int]] = []
        position = cursor = span_start = num_visual_tokens = 0
        for match in self._marks.finditer(marked):
            piece = marked[cursor : match.start()]
            cursor = match.end()
            if (kind := kinds.get(match[0])) is not None:
                if not waiting[kind]:
                    raise Skip(Reason.CONTROL_TOKEN, f"the text spells the media token {match[0]}")
                expanded, num_tokens = self.rules.expand(waiting[kind].pop(0))
                piece += expanded
                num_visual_tokens += num_tokens
            pieces.append(piece)
            position += len(piece)
            if match[0] == OPEN:
                span_start = position
            elif match[0] == CLOSE:
                ended = marked.startswith(self.rules.end_of_turn, cursor)
                spans.append((span_start, position + len(self.rules.end_of_turn) * ended))
        pieces.append(marked[cursor:])
        if any(waiting.values()):
            raise Skip(
                Reason.PROCESSOR_ERROR,
                f"the chat template leaves out {sum(map(len, waiting.values()))} media",
            )
        return Rendered("".join(pieces), spans, num_visual_tokens, self._num_control_tokens(messages))

    def tokenize(self, rendered: Sequence[Rendered]) -> list[Tokens]:
        """Token ids and supervised ranges of several texts at once. The first token of a text is never supervised."""
        encodings = self._tokenizer.encode_batch([item.text for item in rendered], add_special_tokens=False)
        return [
            Tokens(encoding.ids, _token_ranges(encoding.offsets, item.spans))
            for encoding, item in zip(encodings, rendered, strict=True)
        ]

    def encode(self, sample: Sample) -> Tokens:
        """The tokens of one sample: `len(encode(sample).ids)` is its `token_len` in the packs."""
        return self.tokenize([self.render(sample)])[0]

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """A hash for each thing a length depends on."""
        return {
            "tokenizer": _hash(self._tokenizer.to_str()),
            "chat_template": _hash([self.spec.chat_template, self.spec.special_tokens, self.spec.chat_template_kwargs]),
            "media": _hash([self.spec.family, self.rules.settings]),
            "rules": str(RULES_VERSION),
        }

    @cached_property
    def fingerprint(self) -> str:
        """One hash over `fingerprints`: equal fingerprints, equal lengths."""
        return _hash(self.fingerprints)

    def save(self, folder: Path) -> None:
        """Write spec.json and tokenizer.json, for `templates.load_saved`."""
        folder.mkdir(parents=True, exist_ok=True)
        self._tokenizer.save(os.fspath(folder / "tokenizer.json"), pretty=False)
        (folder / "spec.json").write_text(json.dumps(asdict(self.spec), ensure_ascii=False))

    def _num_control_tokens(self, messages: list[Message]) -> int:
        texts = (
            text
            for message in messages
            for text in ([message["content"]] if isinstance(message["content"], str) else _texts(message["content"]))
        )
        return sum(len(self._control.findall(text)) for text in texts)


def _texts(parts: list[Message]) -> list[str]:
    return [part["text"] for part in parts if part["type"] == "text"]


def _any_of(words: list[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(words, key=len, reverse=True))) or "(?!)")


def _token_ranges(offsets: list[tuple[int, int]], spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Tokens that begin inside a span; one that begins before it belongs to what came before."""
    first = itemgetter(0)
    ranges = ((bisect_left(offsets, s, key=first), bisect_left(offsets, e, key=first)) for s, e in spans)
    return [(max(start, 1), end) for start, end in ranges if end > max(start, 1)]


def _hash(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
