"""Text without a chat: one message of role `document`, trained whole and raw. Pure.

{"text": "…"}                                              pre-training data
{"messages": [{"role": "assistant", "content": "…"}]}      an answer to nobody, as ms-swift spells the same
"""

from collections.abc import Mapping, Sequence
from typing import Any

from energon_pack.samples.sample import Message

DOCUMENT = "document"
#: fields of which `text` may be another spelling: instructions with their prompt written out, say
_SPEAK_OF_CHATS = frozenset(
    ("prompt", "completion", "instruction", "output", "query", "response", "question", "answer", "answers", "input")
)
#: of an answer that is more than its text
_MORE_THAN_TEXT = ("tool_calls", "reasoning", "thinking", "reasoning_content")


def is_document(messages: Sequence[Message]) -> bool:
    """Whether a conversation is a raw text."""
    return len(messages) == 1 and messages[0]["role"] == DOCUMENT


def document_of(text: str) -> list[Message]:
    """A raw text as a conversation."""
    return [{"role": DOCUMENT, "content": text}]


def text_alone(fields: Mapping[str, Any]) -> str | None:
    """The field `text` of a sample that has nothing else to be trained; None: it has none."""
    text = fields.get("text")
    return text if isinstance(text, str) and text.strip() and _SPEAK_OF_CHATS.isdisjoint(fields) else None


def answer_alone(messages: Sequence[Message]) -> list[Message] | None:
    """The document that a conversation of one answer is; None: it is a chat."""
    if len(messages) != 1 or messages[0]["role"] != "assistant" or any(map(messages[0].get, _MORE_THAN_TEXT)):
        return None
    return [{**messages[0], "role": DOCUMENT}]
