"""The roles that turns have in the dialects."""

from collections.abc import Mapping
from typing import Any

from energon_pack.samples.documents import DOCUMENT
from energon_pack.samples.sample import ROLE_KEYS
from energon_pack.samples.skip import Reason, Skip
from energon_pack.samples.written_calls import CALL_ROLES

#: roles of the turns that answer
ANSWER_ROLES = ("assistant", "gpt", "bot", "chatgpt", "bing", "model", "bard")
#: the roles that are known, and the one of ours that each means
ROLES = {
    **{role: role for role in ("system", "developer", "user", "assistant", "tool", DOCUMENT)},
    "human": "user",
    **dict.fromkeys((*ANSWER_ROLES, *CALL_ROLES), "assistant"),
    **dict.fromkeys(("function", "observation", "function_response", "tool_response", "ipython"), "tool"),
}
#: who asks and who answers; a text of a `developer` or a `tool` may be any; `prompter` is OpenAssistant's
_ROLES_OF_MESSAGES = (*(role for role, ours in ROLES.items() if ours in ("user", "assistant")), "prompter")


def refuse_message(value: Mapping[str, Any]) -> None:
    """Raise Skip (`bad_message`) for a `text` with a role: one message of a conversation, as OpenAssistant has them."""
    roles = (role for role in map(value.get, ROLE_KEYS) if isinstance(role, str) and role in _ROLES_OF_MESSAGES)
    if role := next(roles, None):
        advice = "write the messages of each conversation as `messages`; source.sample_type=document trains it alone"
        raise Skip(Reason.BAD_MESSAGE, f"text has the role {role!r}: it is a message, not a conversation: {advice}")
