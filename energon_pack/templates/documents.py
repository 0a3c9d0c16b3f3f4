"""Raw texts (`samples.documents`) as a tokenizer sees them: no frame of a chat, and the token that ends a document.

Media stand in it as the chat template writes them in a user's turn.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property

from tokenizers import Tokenizer

from energon_pack.samples.documents import is_document
from energon_pack.samples.sample import Message
from energon_pack.samples.skip import Reason, Skip
from energon_pack.samples.weights import turn_weight
from energon_pack.templates.chat.template import ChatTemplate
from energon_pack.templates.chat.turns import CLOSE, OPEN
from energon_pack.templates.identity import TemplateSpec

#: tokens that end a document where the tokenizer's own ends a turn
_ENDS = ("<|endoftext|>", "<|end_of_text|>")
_BEFORE, _AFTER = "energon_pack_before", "energon_pack_after"


class RawTexts:
    """How one model's raw texts are written."""

    def __init__(self, chat: ChatTemplate, tokenizer: Tokenizer, spec: TemplateSpec, media_tokens: Mapping[str, str]):
        self._chat, self._tokenizer, self._spec, self._media_tokens = chat, tokenizer, spec, media_tokens
        self._frames: dict[str, str] = {}

    def text(self, message: Message) -> str:
        """The whole text of a document."""
        return f"{self.begin}{self._content(message)}{self.end}"

    def marked(self, message: Message) -> str:
        """The same with `OPEN` and `CLOSE` around what is trained: all but the token that begins it.

        Raises:
            Skip: `bad_message` where the text holds a mark already, or `turn_weight` refuses its weight.
        """
        content = self._content(message)
        if OPEN in content or CLOSE in content:
            raise Skip(Reason.BAD_MESSAGE, "the text holds the noncharacter U+FDD0 or U+FDD1")
        if not turn_weight(message, chosen=True):
            return self.text(message)
        return f"{self.begin}{OPEN}{content}{self.end}{CLOSE}"

    @staticmethod
    def weights(messages: Sequence[Message], num_spans: int) -> list[float]:
        """The weight of each span of a document; empty where it is 1, and for a chat."""
        weight = turn_weight(messages[0], chosen=True) if is_document(messages) else 1.0
        return [] if weight == 1.0 else [weight] * num_spans

    @cached_property
    def begin(self) -> str:
        """The token that the tokenizer puts before a text, where it is not told to (`model.add_special_tokens`)."""
        token = self._spec.processor.tokens.get("bos_token")
        if self._spec.add_special_tokens or not token:
            return ""
        ids = self._tokenizer.encode("a", add_special_tokens=True).ids
        return token if ids[0] == self._tokenizer.token_to_id(token) else ""

    @cached_property
    def end(self) -> str:
        """The token that ends a document; empty: there is none."""
        if self._spec.document_end is not None:
            return self._spec.document_end
        token = self._spec.processor.tokens.get("eos_token") or ""
        if token and not self._ends_a_turn(token):
            return token
        return next((end for end in _ENDS if self._tokenizer.token_to_id(end) is not None), token)

    def _ends_a_turn(self, token: str) -> bool:
        """Whether the chat template writes a token after an answer."""
        turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": _BEFORE}]
        try:
            return token in self._chat.render([*turns, *turns], None).partition(_BEFORE)[2].partition(_BEFORE)[0]
        except Skip:
            return False

    def _content(self, message: Message) -> str:
        """The text, with what stands for its media."""
        content = message["content"]
        if isinstance(content, str):
            return content
        return "".join(part["text"] if part["type"] == "text" else self._frame(part["type"]) for part in content)

    def _frame(self, kind: str) -> str:
        """What the chat template writes for a medium between two texts of a user's turn, or its token alone."""
        if kind not in self._frames:
            token = self._media_tokens[kind]
            content = [{"type": "text", "text": _BEFORE}, {"type": kind}, {"type": "text", "text": _AFTER}]
            try:
                text = self._chat.render([{"role": "user", "content": content}], None)
            except Skip:
                text = ""
            frame = text.partition(_BEFORE)[2].partition(_AFTER)[0]
            self._frames[kind] = frame if frame.count(token) == 1 else token
        return self._frames[kind]
