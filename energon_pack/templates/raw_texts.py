"""Write raw texts (`samples.documents`) for a tokenizer: without a chat template, and with the token that ends a
document.

Media are written as the chat template writes them in a user's turn.
"""

from functools import cached_property

from tokenizers import Tokenizer

from energon_pack.samples.sample import Message
from energon_pack.samples.skip import Reason, Skip
from energon_pack.samples.weights import turn_weight
from energon_pack.templates.chat.leaves import NONCHARACTERS
from energon_pack.templates.chat.template import ChatTemplate, Marked
from energon_pack.templates.chat.turns import CLOSE, OPEN
from energon_pack.templates.frames import Frames
from energon_pack.templates.identity import TemplateSpec

#: tokens that end a document if the tokenizer's own end token ends a turn
_ENDS = ("<|endoftext|>", "<|end_of_text|>", "<eos>")
_PROBE = "energon_pack_probe"


class RawTexts:
    """Writes raw texts for one model."""

    def __init__(self, chat: ChatTemplate, frames: Frames, tokenizer: Tokenizer, spec: TemplateSpec):
        self._chat, self._frames, self._tokenizer, self._spec = chat, frames, tokenizer, spec

    def text(self, message: Message) -> str:
        """Return the whole text of a document."""
        return f"{self.begin}{self._content(message)}{self.end}"

    def marked(self, message: Message) -> Marked:
        """Return the same with `OPEN` and `CLOSE` around the trained part: everything but the token that begins it."""
        content = self._content(message)
        if NONCHARACTERS.search(content):
            raise Skip(Reason.BAD_MESSAGE, "the text holds one of the noncharacters U+FDD0 to U+FDEF")
        weight = turn_weight(message, chosen=True)
        if not weight:
            return Marked(self.text(message), [])
        return Marked(f"{self.begin}{OPEN}{content}{self.end}{CLOSE}", [weight])

    @cached_property
    def begin(self) -> str:
        """Return the token that the tokenizer puts before a text, unless `model.add_special_tokens` adds it anyway."""
        token = self._spec.processor.tokens.get("bos_token")
        if self._spec.add_special_tokens or not token:
            return ""
        ids = self._tokenizer.encode("a", add_special_tokens=True).ids
        return token if ids[0] == self._tokenizer.token_to_id(token) else ""

    @cached_property
    def end(self) -> str:
        """Return the token that ends a document; empty: there is none."""
        if self._spec.document_end is not None:
            return self._spec.document_end
        token = self._spec.processor.tokens.get("eos_token") or ""
        if token and not self._ends_a_turn(token):
            return token
        return next((end for end in _ENDS if self._tokenizer.token_to_id(end) is not None), token)

    def _ends_a_turn(self, token: str) -> bool:
        """Say whether the chat template writes a token after an answer."""
        turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": _PROBE}]
        try:
            return token in self._chat.render([*turns, *turns], None).partition(_PROBE)[2].partition(_PROBE)[0]
        except Skip:
            return False

    def _content(self, message: Message) -> str:
        """Return the text, including the text of its media."""
        content = message["content"]
        if isinstance(content, str):
            return content
        return "".join(
            part["text"] if part["type"] == "text" else self._frames.in_question(part["type"]) for part in content
        )
