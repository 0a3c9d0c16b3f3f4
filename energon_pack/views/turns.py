"""Write the messages of a conversation as text."""

import json
from collections.abc import Iterable

from energon_pack.samples.sample import Message
from energon_pack.views.view import Turn


def turns_of(messages: Iterable[Message]) -> list[Turn]:
    """Return each message as text: its content, then its other keys (tool calls, reasoning), as JSON."""
    turns = []
    for message in messages:
        content = message.get("content", "")
        parts = [content] if isinstance(content, str) else content
        text = "".join(part if isinstance(part, str) else part.get("text", f"<{part['type']}>") for part in parts)
        rest = {key: item for key, item in message.items() if key not in ("role", "content") and item is not None}
        lines = [text] * bool(text) + [f"{key}: {json.dumps(item, ensure_ascii=False)}" for key, item in rest.items()]
        turns.append(Turn(str(message.get("role", "")), "\n".join(lines)))
    return turns
