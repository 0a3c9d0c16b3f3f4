"""Refuse samples if the chat template leaves out tools or turns of a conversation whose answers are trained.

The template is shown the same conversation with other texts and names, and they have to stand in its output: a template
may write turns and tools only beside certain others. `spans` notices left-out tool calls, when it looks for the trained
parts.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from energon_pack.samples.sample import Message
from energon_pack.samples.skip import Reason, Skip

if TYPE_CHECKING:
    from energon_pack.templates.chat.renderer import Renderer

#: advice about tools and their calls
REMEDY = "(model.chat_template=FILE gives another, source.tools=text writes calls as text)"
_PROBE = "energon_pack_probe"
_SKIP_ROLES = ("user", "assistant")  # `spans` and the copies of texts look for their texts


def refuse_left_out(template: "Renderer", messages: Sequence[Message], tools: Sequence[Any] | None) -> bool:
    """Raise Skip if the template leaves out turns of a conversation, or its tools although its answers call some.

    Returns:
        Whether the template leaves out tools that no answer calls; also True if it refuses the conversation once it has
        the texts and names of the test.
    """
    turns = {i: _mark(i) for i, message in enumerate(messages) if message["role"] not in _SKIP_ROLES and _text(message)}
    named = [_mark(-1 - number) for number in range(len(tools or ()))]
    if not named and (not turns or ([*turns] == [0] and messages[0]["role"] == "system" and template.shows_system)):
        return False
    probed = [_with_text(message, turns[i]) if i in turns else message for i, message in enumerate(messages)]
    try:
        text = template.render(probed, [*map(_renamed_tool, tools, named)] if tools else None)
    except Skip:
        text = ""
    if missing := [messages[i]["role"] for i, mark in turns.items() if mark not in text]:
        remedy = "another role" if missing[0] != "developer" else "system for it: system_tag of a meta file"
        turns_of_role = f"turns of the role {missing[0]} (model.chat_template=FILE gives another, or {remedy})"
        raise Skip(Reason.PROCESSOR_ERROR, f"the chat template leaves out {turns_of_role}")
    leaves_out_tools = any(mark not in text for mark in named)
    if leaves_out_tools and any(message.get("tool_calls") for message in messages):
        turns_of_role = f"tools, whose calls would be trained {REMEDY}"
        raise Skip(Reason.PROCESSOR_ERROR, f"the chat template leaves out {turns_of_role}")
    return leaves_out_tools


def _mark(number: int) -> str:
    return f"{_PROBE}_{number}_"


def _text(message: Message) -> str:
    content = message["content"]
    parts = content if isinstance(content, list) else [{"text": content}]
    return "".join(str(part.get("text") or "") for part in parts).strip()


def _with_text(message: Message, text: str) -> Message:
    """Return a message with another text; its media stay."""
    content = message["content"]
    if not isinstance(content, list):
        return {**message, "content": text}
    return {
        **message,
        "content": [*(part for part in content if part["type"] != "text"), {"type": "text", "text": text}],
    }


def _renamed_tool(tool: Any, name: str) -> Any:
    """Return a tool with another name; what is no object stays as it is, and the template refuses it."""
    if not isinstance(tool, dict):
        return tool
    function = tool.get("function")
    return {**tool, "function": {**function, "name": name}} if isinstance(function, dict) else {**tool, "name": name}
