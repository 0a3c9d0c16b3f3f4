"""Find out whether the chat template writes the tools of a conversation.

The template is shown the same conversation with other names of its tools, which have to stand in its output: a template
may write tools only beside certain turns. `dropped_words` looks for the words of the turns.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from energon_pack.samples.sample import Message
from energon_pack.samples.skip import Reason, Skip
from energon_pack.templates.chat.dropped_words import KEEP_ADVICE
from energon_pack.templates.settings import TemplateDrops

if TYPE_CHECKING:
    from energon_pack.templates.chat.renderer import Renderer

_PROBE = "energon_pack_probe"


def check_for_left_out_tools(
    template: "Renderer", messages: list[Message], tools: Sequence[Any] | None, drops: TemplateDrops
) -> bool:
    """Say whether the template leaves out tools; also True if it refuses the conversation with other names.

    Args:
        drops: `labels.template_drops`.

    Raises:
        Skip: `template_drops`, unless these are kept, if it leaves out tools that answers call.
    """
    if not tools:
        return False
    names = [f"{_PROBE}_{number}_" for number in range(len(tools))]
    try:
        text = template.render(messages, [*map(_renamed_tool, tools, names)])
    except Skip:
        text = ""
    is_left_out = any(name not in text for name in names)
    if is_left_out and drops is TemplateDrops.skip and any(message.get("tool_calls") for message in messages):
        advice = f"model.chat_template=FILE gives another, source.tools=text writes calls as text, {KEEP_ADVICE}"
        problem = f"the chat template leaves out tools, whose calls would be trained ({advice})"
        raise Skip(Reason.TEMPLATE_DROPS, problem)
    return is_left_out


def _renamed_tool(tool: Any, name: str) -> Any:
    """Return a tool with another name; what is no object stays as it is, and the template refuses it."""
    if not isinstance(tool, dict):
        return tool
    function = tool.get("function")
    return {**tool, "function": {**function, "name": name}} if isinstance(function, dict) else {**tool, "name": name}
