"""What a chat template leaves out of a conversation though its answers are trained: it costs the sample."""

from typing import Any

from energon_pack.samples.sample import Message
from energon_pack.samples.skip import Reason, Skip
from energon_pack.templates.chat.template import ChatTemplate

_WRITTEN_BY_ALL = {"system", "user", "assistant"}  # roles that are not asked about


def refuse_left_out(chat: ChatTemplate, messages: list[Message], tools: list[Any] | None) -> None:
    """Look for calls, the tools of calls, and turns that a template writes nowhere.

    Args:
        messages: as the template takes them.

    Raises:
        Skip: `processor_error`.
    """
    if any(message.get("tool_calls") for message in messages):
        left_out = "tool calls" if chat.leaves_out_calls(messages, tools) else ""
        if left_out or (tools and not chat.shows_tools):
            what = left_out or "tools, whose calls would be trained"
            remedy = "model.chat_template=FILE gives another, source.tools=text writes calls as text"
            raise Skip(Reason.PROCESSOR_ERROR, f"the chat template leaves out {what} ({remedy})")
    for role in {message["role"] for message in messages} - _WRITTEN_BY_ALL:
        if not chat.shows_role(role):
            remedy = "another role" if role != "developer" else "system for it: system_tag of a meta file"
            what = f"turns of the role {role} (model.chat_template=FILE gives another, or {remedy})"
            raise Skip(Reason.PROCESSOR_ERROR, f"the chat template leaves out {what}")
