"""Raw text without a chat: one message of role `document`, all of which is trained. Pure.

{"text": "…"}                                              pre-training data
{"messages": [{"role": "assistant", "content": "…"}]}      an answer without a question: ms-swift's spelling
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, pairwise
from operator import itemgetter
from typing import Any

from energon_pack.samples.sample import Message

DOCUMENT = "document"
#: fields that `text` may repeat, for example an instruction that `text` holds with its prompt written out
_CHAT_FIELDS = frozenset(
    ("prompt", "completion", "instruction", "output", "query", "response", "question", "answer", "answers", "input")
)
#: keys of an answer that has more than a text
_KEYS_OF_MORE_THAN_TEXT = ("tool_calls", "reasoning", "thinking", "reasoning_content")


def is_document(messages: Sequence[Message]) -> bool:
    """Tell whether a conversation is one message of role `document`: raw text without turns."""
    return len(messages) == 1 and messages[0]["role"] == DOCUMENT


def document_of(text: str) -> list[Message]:
    """Return a raw text as a conversation of one message."""
    return [{"role": DOCUMENT, "content": text}]


def text_unless_chat(fields: Mapping[str, Any]) -> str | None:
    """Return the field `text` of a sample; None: it has none, or also has keys of a chat, such as `prompt`."""
    text = fields.get("text")
    return text if isinstance(text, str) and text.strip() and _CHAT_FIELDS.isdisjoint(fields) else None


def document_of_answer(messages: Sequence[Message]) -> list[Message] | None:
    """Return a conversation of one answer as a document; None: it has other turns, or the answer is not only text."""
    if len(messages) != 1 or messages[0]["role"] != "assistant" or any(map(messages[0].get, _KEYS_OF_MORE_THAN_TEXT)):
        return None
    return [{**messages[0], "role": DOCUMENT}]


def with_joined_texts(parts: Iterable[Message]) -> Iterator[Message]:
    """Yield the parts of a document; texts that meet become one, because a template may strip each part."""
    for kind, run in groupby(parts, itemgetter("type")):
        if kind != "text":
            yield from run
            continue
        texts = [part["text"] for part in run]
        seams = ("" if text[-1:].isspace() or after[:1].isspace() else "\n\n" for text, after in pairwise(texts))
        yield {"type": "text", "text": "".join(chain.from_iterable(zip(texts, [*seams, ""], strict=True)))}
