"""Find media in the text of a conversation, with the text that a chat template writes around them: never labels.

Which one? <|vision_start|><|image_pad|><|image_pad|>…<|vision_end|> The left one.
           ──── before ────                           ─── after ───

Raw texts (`samples.documents`) are written without a chat template, and with the token that ends a document. Their
media are written as the chat template writes them in a question.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property

from tokenizers import Tokenizer

from energon_pack.samples.sample import Message
from energon_pack.samples.skip import Reason, Skip
from energon_pack.samples.weights import turn_weight
from energon_pack.templates.chat.labels import Range, TrainedSpan, cut_ranges_out
from energon_pack.templates.chat.template import ChatTemplate, TextWithSpanMarks
from energon_pack.templates.chat.text_marks import NONCHARACTERS
from energon_pack.templates.chat.turns import CLOSE, OPEN, shared_beginning
from energon_pack.templates.identity import TemplateSpec
from energon_pack.templates.settings import LabelSettings
from energon_pack.templates.tokens.pieces import AddedTokenFinder

_PROBE_TEXTS = [{"type": "text", "text": f"energon_pack_probe_{number}"} for number in range(2)]

#: tokens that end a document if the tokenizer's own end token ends a turn
_DOCUMENT_END_TOKENS = ("<|endoftext|>", "<|end_of_text|>", "<eos>")


class MediaTexts:
    """Finds the texts that a chat template writes for media and around them, and cuts them out of trained spans."""

    def __init__(
        self, chat: ChatTemplate, media_tokens: Mapping[str, str], beside: Iterable[str], special: Iterable[str]
    ):
        """Store a chat template and its tokens.

        Args:
            media_tokens: by kind, the text that the template writes for one medium.
            beside: tokens that the processor writes in place of those texts, and around them.
            special: all special tokens of the tokenizer.
        """
        self._chat = chat
        self._media_tokens = media_tokens
        self._processor_tokens = {*beside}
        self._special = {*special}
        self._text_in_question: dict[str, str] = {}
        self._is_shown: dict[tuple[str, str], bool] = {}

    def text_in_user_turn(self, kind: str) -> str:
        """Return the text that the template writes for a medium in a user's turn; empty: it refuses the medium."""
        if kind not in self._text_in_question:
            self._text_in_question[kind] = medium_text_in_user_turn(self._chat.render, kind)
        return self._text_in_question[kind]

    def with_dropped_media_as_text(self, message: Message) -> Message:
        """Return a message in which media that the template drops for its role are text, as for the role `user`."""
        if message["role"] == "user" or isinstance(message["content"], str):
            return message
        content = [
            part
            if part["type"] == "text" or self._shows_media(message["role"], part["type"])
            else {"type": "text", "text": self.text_in_user_turn(part["type"])}
            for part in message["content"]
        ]
        return {**message, "content": content}

    def spells_media_tokens(self, text: str) -> bool:
        """Say whether a text contains a token that is written for a medium or beside one, such as `<|image_pad|>`."""
        for token in self._media_special_tokens.all:  # noqa: SIM110 (a third of the time of `any`, for every text)
            if token in text:
                return True
        return False

    def find_trained_spans_without_media(
        self,
        chat: ChatTemplate,
        text: str,
        spans: Sequence[Range],
        weights: Sequence[float],
        media: Sequence[Range],
        labels: LabelSettings,
    ) -> tuple[list[Range], list[float]]:
        """Return the trained spans of a text by `labels`, and their weights, without media and the text around them.

        Args:
            chat: the chat template with the sample's own variables.
            media: the characters of each medium.
        """
        if labels.trains_whole_turns and not media and not self.spells_media_tokens(text):
            return [*spans], [*weights]
        trained = [TrainedSpan(*span, weight) for span, weight in zip(spans, weights, strict=True)]
        if not labels.trains_whole_turns:
            trained = chat.adjust_spans(text, trained, labels)
        trained = self.cut_media_out(text, trained, sorted(media))
        return [span[:2] for span in trained], [span.weight for span in trained]

    def cut_media_out(self, text: str, trained: Sequence[TrainedSpan], media: Iterable[Range]) -> list[TrainedSpan]:
        """Cut media, the text that frames them and media tokens out of trained spans; `media`: character ranges."""
        rest = cut_ranges_out(trained, [self._range_with_surrounding_text(text, *place) for place in media])
        holes: list[Range] = []
        for start, end, _ in rest:
            span = text[start:end]
            if self.spells_media_tokens(span):  # a text spells such a token
                holes += [
                    (start + place, start + place + len(token))
                    for place, token in self._media_special_tokens.find_all(span)
                ]
        return cut_ranges_out(rest, holes) if holes else rest

    def _shows_media(self, role: str, kind: str) -> bool:
        """Say whether the template writes media of a kind in turns of a role; True if it refuses such a turn."""
        key = role, kind
        if key not in self._is_shown:
            content = [{"type": kind}, {"type": "text", "text": "b"}]
            messages: list[Message] = [{"role": "user", "content": "a"}, {"role": role, "content": content}]
            if role == "tool":
                call = {"id": "call_0001", "type": "function", "function": {"name": "f", "arguments": {}}}
                messages.insert(1, {"role": "assistant", "content": "", "tool_calls": [call]})
            if role == "system":
                messages.reverse()
            try:
                self._is_shown[key] = self._media_tokens.get(kind, "") in self._chat.render(messages, None)
            except Skip:
                self._is_shown[key] = True
        return self._is_shown[key]

    def _range_with_surrounding_text(self, text: str, start: int, end: int) -> Range:
        """Return the place of a medium, widened by the text that the chat template writes around it."""
        for before, after in self._surrounding_texts:
            if text.startswith(after, end) and text.endswith(before, 0, start):
                return start - len(before), end + len(after)
        return start, end

    @cached_property
    def _surrounding_texts(self) -> list[tuple[str, str]]:
        """Return the texts that the template writes before and after a medium, the longest pair first."""
        framed = (self.text_in_user_turn(kind).partition(token) for kind, token in self._media_tokens.items())
        return sorted({(before, after) for before, _, after in framed}, key=lambda pair: -len("".join(pair)))

    @cached_property
    def _media_special_tokens(self) -> AddedTokenFinder:
        """Return the special tokens that stand for a medium, or around one."""
        frames = "".join("".join(pair) for pair in self._surrounding_texts)
        of_frames = {token for token in self._special if token in frames}
        return AddedTokenFinder({*of_frames, *self._media_tokens.values(), *self._processor_tokens})


def medium_text_in_user_turn(render: Callable[..., str], kind: str) -> str:
    """Return the text that a template writes for a medium in a user's turn; empty: it refuses the medium."""
    try:
        alone, both = (
            render([{"role": "user", "content": [_PROBE_TEXTS[0], *medium, _PROBE_TEXTS[1]]}], None)
            for medium in ([], [{"type": kind}])
        )
    except Skip:
        return ""
    start = len(shared_beginning(alone, both))
    end = len(shared_beginning(alone[start:][::-1], both[start:][::-1]))
    return both[start : len(both) - end]


class DocumentTexts:
    """Writes the text of samples that are documents, not chats: without a chat template, with an end token."""

    def __init__(self, chat: ChatTemplate, frames: MediaTexts, tokenizer: Tokenizer, spec: TemplateSpec):
        self._chat, self._media_texts, self._tokenizer, self._spec = chat, frames, tokenizer, spec

    def text(self, message: Message) -> str:
        """Return the text of a document, with its first and last token."""
        return f"{self.begin_token}{self._document_text(message)}{self.end_token}"

    def marked_text(self, message: Message) -> TextWithSpanMarks:
        """Return the document's text with `OPEN` and `CLOSE` around the trained part: all but the first token."""
        content = self._document_text(message)
        if NONCHARACTERS.search(content):
            raise Skip(Reason.BAD_MESSAGE, "the text holds one of the noncharacters U+FDD0 to U+FDEF")
        weight = turn_weight(message, is_trained=True)
        if not weight:
            return TextWithSpanMarks(self.text(message), [])
        return TextWithSpanMarks(f"{self.begin_token}{OPEN}{content}{self.end_token}{CLOSE}", [weight])

    @cached_property
    def begin_token(self) -> str:
        """Return the token to write before a text; empty: the tokenizer has none, or adds it itself."""
        token = self._spec.processor.tokens.get("bos_token")
        if self._spec.add_special_tokens or not token:
            return ""
        ids = self._tokenizer.encode("a", add_special_tokens=True).ids
        return token if ids[0] == self._tokenizer.token_to_id(token) else ""

    @cached_property
    def end_token(self) -> str:
        """Return the token that ends a document; empty: there is none."""
        if self._spec.document_end is not None:
            return self._spec.document_end
        token = self._spec.processor.tokens.get("eos_token") or ""
        if token and not any(token in text for text in self._chat.texts_after_answers[:1]):
            return token
        return next((end for end in _DOCUMENT_END_TOKENS if self._tokenizer.token_to_id(end) is not None), token)

    def _document_text(self, message: Message) -> str:
        """Return a document's text, in which media stand as text."""
        content = message["content"]
        if isinstance(content, str):
            return content
        return "".join(
            part["text"] if part["type"] == "text" else self._media_texts.text_in_user_turn(part["type"])
            for part in content
        )
