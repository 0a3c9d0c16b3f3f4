"""What a turn's trained part is by transformers alone, with no framework and none of our code.

A turn is what follows the rendering of all before it, with the generation prompt, up to the end of the rendering up to
it; it is known where both are prefixes of the whole. As `../shared/research/labels.md` calls it: `prefix`.
"""

import json
import re
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any

from support.labels.folders import DAY

Row = dict[str, Any]
Span = tuple[int, int]
#: keys that no template reads
_OF_OTHERS = frozenset(
    ("loss", "loss_scale", "weight", "loss_weight", "train", "training", "masked", "mask", "loss_mask", "trainable")
)


class _Today(datetime):
    """The day on which truth was made, for templates that write today's date."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> "_Today":
        return cls.fromisoformat(DAY)


class Prefix:
    """The chat template of a folder, rendered by transformers."""

    def __init__(self, folder: Path, **variables: Any):
        from transformers import AutoTokenizer
        from transformers.utils import chat_template_utils

        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self._variables = variables
        chat_template_utils.datetime = _Today  # type: ignore[attr-defined]
        for name in ("chat_template.jinja", "chat_template.json"):
            if (folder / name).exists():
                text = (folder / name).read_text()
                self._tokenizer.chat_template = json.loads(text)["chat_template"] if name.endswith("n") else text
        self._wants_parts = not self._shows("probe") and self._shows([{"type": "text", "text": "probe"}])

    def text(self, conversation: Row, up_to: int | None = None, prompt: bool = False) -> str | None:
        """The rendering of a conversation's first messages; None where the template refuses them."""
        has_images = bool(conversation.get("images"))
        messages = [self._message(message, has_images) for message in conversation["messages"][:up_to]]
        try:
            text: str = self._tokenizer.apply_chat_template(
                messages,
                conversation.get("tools"),
                tokenize=False,
                add_generation_prompt=prompt,
                **{**self._variables, **conversation.get("chat_template_kwargs", {})},
            )
        except Exception:  # a template is a program
            return None
        return text

    def spans(self, conversation: Row) -> list[Span | None]:
        """The trained part of each assistant turn in the whole text; None where prefixes do not tell."""
        whole = self.text(conversation) or ""
        found: list[Span | None] = []
        for i, message in enumerate(conversation["messages"]):
            if message["role"] == "assistant":
                before, after = self.text(conversation, i, prompt=True), self.text(conversation, i + 1)
                tells = bool(before and after and whole.startswith(before) and whole.startswith(after))
                found.append((len(before), len(after)) if tells and before and after else None)
        return found

    def _message(self, message: Row, has_images: bool) -> Row:
        own = {key: value for key, value in message.items() if key not in _OF_OTHERS and value is not None}
        content = own.get("content") or ""
        if isinstance(content, str) and (self._wants_parts or (has_images and "<image>" in content)):
            pieces = [piece for piece in re.split("(<image>)", content) if piece] if has_images else [content]
            parts: list[Row] = []
            for piece in pieces:
                parts.append(
                    {"type": "image"} if has_images and piece == "<image>" else {"type": "text", "text": piece}
                )
            content = parts
        own["content"] = content
        if calls := own.get("tool_calls"):
            own["tool_calls"] = [{**call, "function": _with_object(call["function"])} for call in calls]
        return own

    def _shows(self, content: Any) -> bool:
        try:
            text = self._tokenizer.apply_chat_template([{"role": "user", "content": content}], tokenize=False)
        except Exception:  # a template is a program
            return False
        return "probe" in text


def _with_object(function: Row) -> Row:
    arguments = function["arguments"]
    return {**function, "arguments": json.loads(arguments) if isinstance(arguments, str) else arguments}
