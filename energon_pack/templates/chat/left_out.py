"""Refuse samples if the chat template leaves out tools or turns of a conversation whose answers are trained.

`spans` notices left-out tool calls, when it looks for the trained parts.
"""

from typing import TYPE_CHECKING, Any

from energon_pack.samples.sample import Message
from energon_pack.samples.skip import Reason, Skip

if TYPE_CHECKING:
    from energon_pack.templates.chat.renderer import Renderer

#: advice about tools and their calls
REMEDY = "(model.chat_template=FILE gives another, source.tools=text writes calls as text)"
_WRITTEN_BY_ALL = {"system", "user", "assistant"}  # roles that are not checked


def refuse_left_out(template: "Renderer", messages: list[Message], tools: list[Any] | None) -> None:
    """Refuse a conversation if the template does not write the tools of its calls, or some of its turns.

    Args:
        messages: in the form that the template takes.

    Raises:
        Skip: `processor_error`.
    """
    if tools and any(message.get("tool_calls") for message in messages) and not template.shows_tools:
        what = f"tools, whose calls would be trained {REMEDY}"
        raise Skip(Reason.PROCESSOR_ERROR, f"the chat template leaves out {what}")
    for role in {message["role"] for message in messages} - _WRITTEN_BY_ALL:
        if not template.shows_role(role):
            remedy = "another role" if role != "developer" else "system for it: system_tag of a meta file"
            what = f"turns of the role {role} (model.chat_template=FILE gives another, or {remedy})"
            raise Skip(Reason.PROCESSOR_ERROR, f"the chat template leaves out {what}")
