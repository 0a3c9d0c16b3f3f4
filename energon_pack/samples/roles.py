"""The roles that turns have in the dialects."""

from energon_pack.samples.documents import DOCUMENT
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
