"""What a chat template writes for a medium, read off its rendering."""

from collections.abc import Mapping
from typing import Any

from energon_pack.templates.chat.jinja import environment

_BEFORE, _AFTER = "energon_pack_before", "energon_pack_after"


def written_for(kind: str, source: str, variables: Mapping[str, Any], date: str) -> str:
    """What stands between two texts for the medium between them, without the white space around; empty: nothing does.

    Args:
        variables: of the chat template.
        date: as of `environment`.
    """
    parts = [{"type": "text", "text": _BEFORE}, {"type": kind}, {"type": "text", "text": _AFTER}]
    given = {"documents": None, "tools": None, "add_generation_prompt": False, **variables}
    try:
        template = environment(date).from_string(source)
        text = template.render(messages=[{"role": "user", "content": parts}], **given)
    except Exception:  # a template is a program: it may want another conversation
        return ""
    _, is_there, rest = text.partition(_BEFORE)
    written, ends, _ = rest.partition(_AFTER)
    return written.strip() if is_there and ends else ""
